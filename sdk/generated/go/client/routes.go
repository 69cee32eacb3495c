package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	maxNodes    = 32
	maxOwners   = 32
	connectTime = 5 * time.Second  // for a connection to an owner
	nodeTime    = 2 * time.Second  // for one to a node of several, before the next is tried
	idleTime    = 5 * time.Minute  // after which a connection to an owner is closed
	sweepTime   = 30 * time.Second // between looks for such ones
)

// routes is the connection of a client to the nodes of a cluster: one of the given ones, or straight to the node that
// answers named as the owner. A single server names none.
//
// A node that can't be reached is left for the next of the given ones. An owner is called once it is connected, so one
// that can't be reached from here costs no call; when a call on it fails because the node is unavailable, the next ones
// go to a given node, and that owner is not tried for half a minute.
type routes struct {
	dial    func(target string) (*grpc.ClientConn, error)
	nodes   []string
	follows bool

	mu     sync.Mutex
	at     int              // the node in use
	links  map[string]*link // to given nodes
	owners map[string]*link
	hints  *hints
	sweep  time.Time
	closed bool
}

// link is the connection to one node.
type link struct {
	target string
	conn   *grpc.ClientConn
	calls  int       // under way to it as an owner
	used   time.Time // by such a call
	since  time.Time // it has been found not to be connected; zero while it is
	left   bool      // it is to be closed when its calls have ended
}

// nodesIn are the nodes that an address names, host:port or several with commas.
func nodesIn(address string) ([]string, error) {
	var nodes []string
	for node := range strings.SplitSeq(address, ",") {
		node = strings.TrimSpace(node)
		if node == "" {
			return nil, fmt.Errorf("%q: a server's address is HOST:PORT, or several with commas", address)
		}
		if !slices.Contains(nodes, node) {
			nodes = append(nodes, node)
		}
	}
	if len(nodes) > maxNodes {
		return nil, fmt.Errorf("an address has at most %d nodes", maxNodes)
	}
	return nodes, nil
}

func newRoutes(nodes []string, follows bool, dial func(string) (*grpc.ClientConn, error)) (*routes, error) {
	r := &routes{
		dial: dial, nodes: nodes, follows: follows, links: map[string]*link{}, owners: map[string]*link{},
		hints: newHints(), sweep: time.Now().Add(sweepTime),
	}
	for _, node := range nodes { // none connects yet
		conn, err := dial(node)
		if err != nil {
			return nil, errors.Join(err, r.Close())
		}
		r.links[node] = &link{target: node, conn: conn}
	}
	return r, nil
}

// Close ends all connections.
func (r *routes) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	var failed []error
	for _, links := range []map[string]*link{r.links, r.owners} {
		for _, each := range links {
			if err := each.conn.Close(); status.Code(err) != codes.Canceled { // closed already, as a node that is an owner
				failed = append(failed, err)
			}
		}
	}
	r.owners = map[string]*link{}
	return errors.Join(failed...)
}

// Invoke makes a unary call.
func (r *routes) Invoke(ctx context.Context, method string, request, reply any, options ...grpc.CallOption) error {
	to := keyOf(request)
	used, end := r.begin(ctx, to)
	defer end()
	var initial, trailing metadata.MD
	err := used.conn.Invoke(ctx, method, request, reply, append(slices.Clip(options), grpc.Header(&initial), grpc.Trailer(&trailing))...)
	r.answered(used, to, initial, trailing, err)
	return err
}

// NewStream opens a stream; one that takes a single request when it has that.
func (r *routes) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption) (grpc.ClientStream, error) {
	opened := &routed{routes: r, ctx: ctx, open: func(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
		return conn.NewStream(ctx, desc, method, options...)
	}}
	if desc.ClientStreams {
		return opened, opened.begin(everything)
	}
	return opened, nil
}

// begin is the connection for the next call, and what to do when that has ended.
func (r *routes) begin(ctx context.Context, to key) (*link, func()) {
	r.mu.Lock()
	owner := r.ownerOf(to, time.Now())
	r.mu.Unlock()
	if owner == nil {
		return r.node(ctx), func() {}
	}
	return owner, sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		owner.calls--
		if owner.left && owner.calls == 0 {
			owner.conn.Close()
		}
	})
}

// node is the connection to a given node: to the one in use, else to the next that can be reached.
func (r *routes) node(ctx context.Context) *link {
	r.mu.Lock()
	at := r.at
	r.mu.Unlock()
	if len(r.nodes) == 1 {
		return r.links[r.nodes[at]]
	}
	for i := range r.nodes {
		next := (at + i) % len(r.nodes)
		if found := r.links[r.nodes[next]]; found.connects(ctx) {
			r.mu.Lock()
			if r.at == at {
				r.at = next
			}
			r.mu.Unlock()
			return found
		}
	}
	return r.links[r.nodes[at]] // which says why not
}

// connects waits for a connection, for a short time.
func (l *link) connects(ctx context.Context) bool {
	limited, cancel := context.WithTimeout(ctx, nodeTime)
	defer cancel()
	for {
		state := l.conn.GetState()
		switch state {
		case connectivity.Ready:
			return true
		case connectivity.TransientFailure, connectivity.Shutdown:
			return false
		case connectivity.Idle:
			l.conn.Connect()
		}
		if !l.conn.WaitForStateChange(limited, state) {
			return false
		}
	}
}

// ownerOf is the connection to the owner of a key, with one call more on it; nil while there is none. The lock is held.
func (r *routes) ownerOf(to key, now time.Time) *link {
	if r.hints.order.Len() == 0 {
		return nil
	}
	if now.After(r.sweep) {
		r.closeIdle(now, idleTime)
	}
	target := r.hints.find(to, now)
	owner := r.owners[target]
	if owner == nil || target == r.nodes[r.at] {
		return nil
	}
	if owner.conn.GetState() != connectivity.Ready {
		owner.conn.Connect()
		if owner.since.IsZero() {
			owner.since = now
		} else if now.Sub(owner.since) > connectTime {
			r.avoid(owner, now)
		}
		return nil
	}
	owner.since, owner.used = time.Time{}, now
	owner.calls++
	return owner
}

// answered takes note of what the end of a call says of its owner.
func (r *routes) answered(used *link, to key, initial, trailing metadata.MD, err error) {
	code := status.Code(err)
	ofAll, ofKey := ownerIn(initial), ownerIn(trailing)
	failed := code == codes.Unavailable || code == codes.DeadlineExceeded
	if !failed && ofAll == "" && ofKey == "" {
		return
	}
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if failed {
		r.failed(used, to, now, err)
	}
	if ofAll != "" {
		r.learn(everything, ofAll, now)
	} else if ofKey != "" && to != everything {
		r.learn(to, ofKey, now)
	}
}

// failed takes note of a call that failed since a node is unavailable, or, if its server gave a reason, what it was asked
// for.
func (r *routes) failed(used *link, to key, now time.Time, err error) {
	ofNode := true
	for _, detail := range status.Convert(err).Details() {
		if info, is := detail.(*errdetails.ErrorInfo); is {
			ofNode = info.Reason == "SHUTTING_DOWN"
		}
	}
	if r.owners[used.target] == used && ofNode {
		r.avoid(used, now)
	}
	if used.target != r.nodes[r.at] {
		r.hints.forget(to, used.target)
	} else {
		r.at = (r.at + 1) % len(r.nodes)
	}
}

// learn remembers an owner, and connects to it in the background.
func (r *routes) learn(to key, target string, now time.Time) {
	if !r.follows || r.closed || r.hints.avoids(target, now) {
		return
	}
	if r.owners[target] == nil {
		owner := r.links[target]
		if owner == nil {
			owner = r.connected(target, now)
		}
		if owner == nil {
			return
		}
		owner.since = now
		r.owners[target] = owner
		owner.conn.Connect()
	}
	r.hints.learn(to, target)
}

// connected is a connection to a node that was named; nil if there can't be one.
func (r *routes) connected(target string, now time.Time) *link {
	host, port, err := net.SplitHostPort(target)
	if _, wrong := strconv.ParseUint(port, 10, 16); err != nil || wrong != nil || host == "" {
		return nil
	}
	if len(r.owners) >= maxOwners {
		r.closeIdle(now, 0)
	}
	if len(r.owners) >= maxOwners {
		return nil
	}
	conn, err := r.dial(target)
	if err != nil {
		return nil
	}
	return &link{target: target, conn: conn, used: now}
}

func (r *routes) avoid(owner *link, now time.Time) {
	r.hints.avoid(owner.target, now)
	r.leave(owner)
}

// leave closes the connection to an owner when its calls have ended.
func (r *routes) leave(owner *link) {
	delete(r.owners, owner.target)
	if r.links[owner.target] == owner {
		return
	}
	owner.left = true
	if owner.calls == 0 {
		owner.conn.Close()
	}
}

func (r *routes) closeIdle(now time.Time, idle time.Duration) {
	r.sweep = now.Add(sweepTime)
	for _, owner := range r.owners {
		if owner.calls == 0 && now.Sub(owner.used) >= idle {
			r.leave(owner)
		}
	}
}

// routed is a stream on the connection that is chosen for it.
type routed struct {
	routes *routes
	ctx    context.Context
	open   func(context.Context, *grpc.ClientConn) (grpc.ClientStream, error)
	stream grpc.ClientStream // nil before there is a request
	to     key
	used   *link
	end    func()
	began  bool
}

var errNoRequest = status.Error(codes.Internal, "the call has no request")

func (s *routed) begin(to key) error {
	s.to = to
	s.used, s.end = s.routes.begin(s.ctx, to)
	stream, err := s.open(s.ctx, s.used.conn)
	if err != nil {
		s.routes.answered(s.used, to, nil, nil, err)
		s.end()
		return err
	}
	context.AfterFunc(stream.Context(), s.end)
	s.stream = stream
	return nil
}

func (s *routed) SendMsg(message any) error {
	if s.stream == nil {
		if err := s.begin(keyOf(message)); err != nil {
			return err
		}
	}
	return s.stream.SendMsg(message)
}

func (s *routed) RecvMsg(message any) error {
	if s.stream == nil {
		return errNoRequest
	}
	err := s.stream.RecvMsg(message)
	if err == nil && s.began {
		return nil
	}
	initial, _ := s.stream.Header()
	if err == nil {
		s.began = true
		s.routes.answered(s.used, s.to, initial, nil, nil)
		return nil
	}
	failed := err
	if errors.Is(err, io.EOF) {
		failed = nil
	}
	s.routes.answered(s.used, s.to, initial, s.stream.Trailer(), failed)
	s.end()
	return err
}

func (s *routed) Header() (metadata.MD, error) {
	if s.stream == nil {
		return nil, errNoRequest
	}
	return s.stream.Header()
}

func (s *routed) Trailer() metadata.MD {
	if s.stream == nil {
		return nil
	}
	return s.stream.Trailer()
}

func (s *routed) CloseSend() error {
	if s.stream == nil {
		return errNoRequest
	}
	return s.stream.CloseSend()
}

func (s *routed) Context() context.Context {
	if s.stream == nil {
		return s.ctx
	}
	return s.stream.Context()
}
