// Package client reads, writes and works on topics: streams that resume after a lost connection, appends that are
// stored once, workers that keep their leases. It is thin: for all other calls it carries the generated clients.
package client

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"math"
	mathrand "math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	topicsv1 "topics.test/sdk/topics/v1"
)

const (
	messageBytes = 80 << 20 // an append may carry 64 MiB
	callTimeout  = 30 * time.Second
	heartbeat    = 15 * time.Second
	silence      = 3 * heartbeat // that is a break, of streams with heartbeats
)

// Options says how to reach a server. The zero value is for one without keys and without TLS.
type Options struct {
	// Key is the API key.
	Key string
	// TLS, when not nil, is how the connection is secured.
	TLS *tls.Config
	// Retry limits how long calls wait for an absent server.
	Retry Retry
	// StayAtNodes keeps all calls at the nodes of the address, which forward them to the owners of topics in a cluster.
	// By default calls go straight to the owner that an answer has named.
	StayAtNodes bool
	// Dial holds further options of gRPC.
	Dial []grpc.DialOption
}

// Client is a connection to one server, or to the nodes of a cluster, for any number of goroutines. It connects with
// the first call, and again by itself when the server comes back.
type Client struct {
	// Topics, Queues, Watches, Routers, Groups, SQL and Admin are the generated clients of the same connection; calls get
	// the key.
	Topics  topicsv1.TopicsServiceClient
	Queues  topicsv1.QueueServiceClient
	Watches topicsv1.WatchServiceClient
	Routers topicsv1.RouterServiceClient
	Groups  topicsv1.GroupServiceClient
	SQL     topicsv1.SqlServiceClient
	Admin   topicsv1.AdminServiceClient

	connection *routes
	retry      Retry
}

// New makes a client of the server at address, host:port. Of a cluster it can name several nodes, up to 32 with commas,
// and uses the first that it reaches. It does not connect yet.
func New(address string, options Options) (*Client, error) {
	nodes, err := nodesIn(address)
	if err != nil {
		return nil, err
	}
	secure := insecure.NewCredentials()
	if options.TLS != nil {
		secure = credentials.NewTLS(options.TLS)
	}
	dial := []grpc.DialOption{
		grpc.WithTransportCredentials(secure),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytes), grpc.MaxCallSendMsgSize(messageBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
	}
	if options.Key != "" {
		keyed := func(ctx context.Context) context.Context {
			return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+options.Key)
		}
		dial = append(dial,
			grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				return invoke(keyed(ctx), method, request, reply, cc, opts...)
			}),
			grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				return stream(keyed(ctx), desc, cc, method, opts...)
			}),
		)
	}
	connection, err := newRoutes(nodes, !options.StayAtNodes, func(target string) (*grpc.ClientConn, error) {
		pings := keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}
		if !slices.Contains(nodes, target) { // others would forward its calls if its machine is gone
			pings = keepalive.ClientParameters{Time: 11 * time.Second, Timeout: 5 * time.Second}
		}
		all := append(slices.Clip(dial), grpc.WithKeepaliveParams(pings))
		return grpc.NewClient(target, append(all, options.Dial...)...)
	})
	if err != nil {
		return nil, err
	}
	return &Client{
		Topics:     topicsv1.NewTopicsServiceClient(connection),
		Queues:     topicsv1.NewQueueServiceClient(connection),
		Watches:    topicsv1.NewWatchServiceClient(connection),
		Routers:    topicsv1.NewRouterServiceClient(connection),
		Groups:     topicsv1.NewGroupServiceClient(connection),
		SQL:        topicsv1.NewSqlServiceClient(connection),
		Admin:      topicsv1.NewAdminServiceClient(connection),
		connection: connection,
		retry:      options.Retry.filled(),
	}, nil
}

// Close ends the connection, and every call on it.
func (c *Client) Close() error { return c.connection.Close() }

// Retry limits the time of retries without progress, with pauses that double, with full jitter, and
// are never shorter than a server asks for. The zero value takes every default.
type Retry struct {
	// Total is the time of all attempts; below zero means one attempt. Default one minute.
	Total time.Duration
	// First is the longest first pause. Default 50 ms.
	First time.Duration
	// Longest is the longest pause. Default 5 s.
	Longest time.Duration
}

func (r Retry) filled() Retry {
	if r.Total == 0 {
		r.Total = time.Minute
	}
	if r.First == 0 {
		r.First = 50 * time.Millisecond
	}
	if r.Longest == 0 {
		r.Longest = 5 * time.Second
	}
	return r
}

var forever = Retry{Total: math.MaxInt64, First: 50 * time.Millisecond, Longest: 2 * time.Second}

// patience is the remaining time of retries without progress.
type patience struct {
	retry Retry
	began time.Time
	pause time.Duration
}

// renew notes progress: the time starts again with the next failure.
func (p *patience) renew() { p.began = time.Time{} }

// wait sleeps before another attempt. It returns err at once if it is not transient or the time would be up, and the
// error of ctx if that ends first.
func (p *patience) wait(ctx context.Context, err error) error {
	if !Transient(err) {
		return err
	}
	if p.began.IsZero() {
		p.began, p.pause = time.Now(), p.retry.First
	}
	pause := time.Duration(mathrand.Int64N(int64(p.pause) + 1))
	if known := err.(*Error); pause < known.RetryAfter {
		pause = known.RetryAfter
	}
	p.pause = min(2*p.pause, p.retry.Longest)
	if time.Since(p.began)+pause > p.retry.Total {
		return err
	}
	return sleep(ctx, pause)
}

// sleep waits, unless ctx ends before.
func sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// unary makes one attempt of a call, with a deadline.
func unary[Request, Reply any](
	ctx context.Context, timeout time.Duration, call func(context.Context, Request, ...grpc.CallOption) (Reply, error), request Request,
) (Reply, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	reply, err := call(limited, request)
	return reply, failure(ctx, err)
}

// randomID is a random, unique text.
func randomID() string {
	var id [16]byte
	rand.Read(id[:])
	return hex.EncodeToString(id[:])
}
