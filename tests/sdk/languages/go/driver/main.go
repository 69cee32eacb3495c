// One operation of the Go client, as test_behaviours.py wants it: driver OPERATION JSON.
//
// It prints one JSON object a line. A line on stdin ends an endless scenario.
package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log"
	"log/slog"
	"os"
	"time"

	"topics.test/sdk/client"
)

type request struct {
	Topic     string
	Topics    map[string]any
	From      uint64
	Last      *uint32
	Follow    bool
	Tag       *string
	TagPrefix *string `json:"tag_prefix"`
	Partition uint32
	Cursor    map[string]uint64
	Key       *string
	Records   []struct {
		Value     json.RawMessage
		Tag, Node *string
		Meta      any
	}
	Count       int
	PauseMS     int `json:"pause_ms"`
	Queue       string
	Concurrency int
	BusyMS      int    `json:"busy_ms"`
	LeaseMS     int    `json:"lease_ms"`
	FailFirst   uint64 `json:"fail_first"`
	BackoffMS   int    `json:"backoff_ms"`
}

type line = map[string]any

func main() {
	log.SetFlags(0)
	var ask request
	must(json.Unmarshal([]byte(os.Args[2]), &ask))
	topics, err := client.New(os.Getenv("TOPICS_ADDRESS"), client.Options{
		Retry: client.Retry{Total: 120 * time.Second}, StayAtNodes: os.Getenv("TOPICS_STAY") != "",
		Key: os.Getenv("TOPICS_KEY"), TLS: roots(os.Getenv("TOPICS_CA")),
	})
	must(err)
	defer topics.Close()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		if bufio.NewScanner(os.Stdin).Scan() {
			cancel()
		}
	}()
	operations := map[string]func(context.Context, *client.Client, request) error{
		"read": read, "watch": watch, "append": appendMany, "produce": produce, "work": work,
	}
	err = operations[os.Args[1]](ctx, topics, ask)
	var known *client.Error
	if errors.As(err, &known) {
		detail := known.Detail
		if detail == nil {
			detail = map[string]string{}
		}
		tell(line{"error": known.Reason, "detail": detail, "transient": known.Transient()})
		return
	}
	must(err)
}

// roots is TLS that trusts the certificates in a file; nil without one.
func roots(file string) *tls.Config {
	if file == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	must(err)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(text)
	return &tls.Config{RootCAs: trusted}
}

func read(ctx context.Context, topics *client.Client, ask request) error {
	reading := topics.Read(ask.Topic, client.ReadOptions{
		Partition: ask.Partition, From: ask.From, Last: ask.Last, Follow: ask.Follow, Tag: ask.Tag, TagPrefix: ask.TagPrefix,
	})
	return told(reading.Events(ctx), func() any { cursor, _ := reading.Cursor(); return cursor })
}

func watch(ctx context.Context, topics *client.Client, ask request) error {
	begin := map[string]uint64{}
	for name, from := range ask.Topics {
		begin[name] = client.Tail
		if seq, is := from.(float64); is {
			begin[name] = uint64(seq)
		}
	}
	watching := topics.Watch(begin, client.WatchOptions{Cursor: ask.Cursor})
	return told(watching.Events(ctx), func() any { return watching.Cursor() })
}

// told tells the events to the end, and then where it is.
func told(events iter.Seq2[client.Event, error], cursor func() any) error {
	for event, err := range events {
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		switch event := event.(type) {
		case *client.Record:
			meta := event.Meta
			if len(meta) == 0 {
				meta = json.RawMessage("{}")
			}
			tell(line{
				"topic": event.Topic, "seq": event.Seq, "tag": event.Tag, "node": event.Node, "binary": event.Binary,
				"data": base64.StdEncoding.EncodeToString(event.Data), "meta": meta,
			})
		case *client.Gap:
			tell(line{"gap": []any{event.First, event.Last, event.Reason}})
		case *client.CaughtUp:
			tell(line{"caught_up": []any{event.Topic, event.Head}})
		case *client.TopicDeleted:
			tell(line{"deleted": event.Topic})
		}
	}
	tell(line{"end": cursor()})
	return nil
}

func appendMany(ctx context.Context, topics *client.Client, ask request) error {
	var records []client.NewRecord
	for _, each := range ask.Records {
		record := client.NewRecord{Value: each.Value, Tag: each.Tag, Node: each.Node, Meta: each.Meta}
		var binary struct {
			Bytes []byte `json:"$bytes"`
		}
		if json.Unmarshal(each.Value, &binary) == nil && binary.Bytes != nil {
			record.Value = binary.Bytes
		}
		records = append(records, record)
	}
	done, err := topics.Append(ctx, ask.Topic, client.AppendOptions{IdempotencyKey: ask.Key}, records...)
	if err == nil {
		tell(line{"first": done.FirstSeq, "last": done.LastSeq, "deduped": done.Deduped})
	}
	return err
}

func produce(ctx context.Context, topics *client.Client, ask request) error {
	producer := topics.NewProducer(client.ProducerOptions{})
	var deliveries []*client.Delivery
	for n := range ask.Count {
		delivery, err := producer.Send(ctx, ask.Topic, 0, client.NewRecord{Value: line{"n": n}})
		if err != nil {
			return err
		}
		deliveries = append(deliveries, delivery)
		time.Sleep(time.Duration(ask.PauseMS) * time.Millisecond)
	}
	if err := producer.Close(ctx); err != nil {
		return err
	}
	stored := make([]uint64, len(deliveries))
	for i, delivery := range deliveries {
		stored[i], _ = delivery.Wait(ctx)
	}
	tell(line{"stored": stored})
	return nil
}

func work(ctx context.Context, topics *client.Client, ask request) error {
	backoff := time.Duration(cmp.Or(ask.BackoffMS, 10)) * time.Millisecond
	handle := func(ctx context.Context, job *client.Job) error {
		tell(line{"job": job.Seq, "deliveries": job.Deliveries})
		select {
		case <-time.After(time.Duration(ask.BusyMS) * time.Millisecond):
		case <-ctx.Done():
			tell(line{"lost": job.Seq})
			return ctx.Err()
		}
		if job.Deliveries <= ask.FailFirst {
			return errors.New("as it was asked for")
		}
		tell(line{"done": job.Seq})
		return nil
	}
	did, err := topics.Work(ctx, ask.Queue, handle, client.WorkerOptions{
		Concurrency: ask.Concurrency, Lease: time.Duration(ask.LeaseMS) * time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Backoff: func(uint64) time.Duration { return backoff },
	})
	if err == nil {
		tell(line{"acked": did.Acked, "retried": did.Retried, "released": did.Released, "lost_count": did.Lost})
	}
	return err
}

func tell(line line) {
	text, err := json.Marshal(line)
	must(err)
	fmt.Println(string(text)) // one write
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
