// The consumer of the shop: follows the topic `receipts`, keeps what each customer owes, and serves the page with it.
//
// The totals are made of the topic anew at each start, so nothing is kept beside it. The page follows the topic itself,
// through this program, which adds a key that may only read: no key is in the browser.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"topics.test/sdk/client"
)

// Receipt is what a customer owes for an order, in cents.
type Receipt struct {
	Order    string `json:"order"`
	Customer string `json:"customer"`
	Total    int    `json:"total"`
}

// Totals is the debt of each customer, up to a receipt. Lost are receipts that can't be counted any
// more.
type Totals struct {
	Customers map[string]int `json:"customers"`
	Seq       uint64         `json:"seq"`
	Lost      uint64         `json:"lost"`
}

type consumer struct {
	mu     sync.Mutex
	totals Totals
}

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "where the page is served")
	grpc := flag.String("grpc", "127.0.0.1:4001", "the gRPC address of the server")
	api := flag.String("http", "http://127.0.0.1:4000", "its HTTP address")
	page := flag.String("page", "../page/dist", "the files of the page")
	flag.Parse()
	log.SetFlags(0)
	log.SetPrefix("consumer: ")
	key := os.Getenv("TOPICS_API_KEY")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()

	topics, err := client.New(*grpc, client.Options{Key: key})
	must(err)
	defer topics.Close()
	behind, err := url.Parse(*api)
	must(err)
	listener, err := net.Listen("tcp", *listen)
	must(err)
	log.Printf("serves http://%s", listener.Addr())

	shop := &consumer{totals: Totals{Customers: map[string]int{}}}
	server := &http.Server{Handler: shop.routes(*page, behind, key), ReadHeaderTimeout: 10 * time.Second}
	go server.Serve(listener)
	err = shop.follow(ctx, topics)
	server.Close()
	if !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

// follow counts receipts until ctx ends. A topic that is not there yet is waited for.
func (c *consumer) follow(ctx context.Context, topics *client.Client) error {
	reading := topics.Read("receipts", client.ReadOptions{Follow: true})
	for {
		for event, err := range reading.Events(ctx) {
			switch event := event.(type) {
			case *client.Record:
				c.count(event)
			case *client.Gap:
				c.lose(event)
			}
			if err == nil {
				continue
			}
			if client.Reason(err) != "topic_not_found" {
				return err
			}
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (c *consumer) count(record *client.Record) {
	var receipt Receipt
	err := record.JSON(&receipt)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.totals.Seq = record.Seq
	if err != nil {
		log.Printf("seq %d is no receipt: %v", record.Seq, err)
		return
	}
	c.totals.Customers[receipt.Customer] += receipt.Total
}

func (c *consumer) lose(gap *client.Gap) {
	log.Printf("receipts %d to %d are lost (%s)", gap.First, gap.Last, gap.Reason)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.totals.Lost += gap.Last - gap.First + 1
}

// routes are the page, the totals, and what the page needs of the server to watch.
func (c *consumer) routes(page string, api *url.URL, key string) http.Handler {
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1, // events go out as they come
		Rewrite: func(request *httputil.ProxyRequest) {
			request.SetURL(api)
			request.Out.Header.Del("Origin") // the page is of this origin, which the server does not know
			request.Out.Header.Set("Authorization", "Bearer "+key)
		},
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServer(http.Dir(page)))
	mux.Handle("POST /v0/watch", proxy)
	mux.Handle("GET /v0/watch/{session}", proxy)
	mux.HandleFunc("GET /totals", func(reply http.ResponseWriter, _ *http.Request) {
		reply.Header().Set("Content-Type", "application/json")
		json.NewEncoder(reply).Encode(c.known())
	})
	return mux
}

func (c *consumer) known() Totals {
	c.mu.Lock()
	defer c.mu.Unlock()
	totals := c.totals
	totals.Customers = maps.Clone(totals.Customers)
	return totals
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
