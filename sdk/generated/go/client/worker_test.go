package client

import (
	"context"
	"log/slog"
	"testing"
	"time"

	topicsv1 "topics.test/sdk/topics/v1"
)

// A job that was given back may come again before the answer to that: its outcome is that of the answer.
func TestAJobThatComesBackBeforeTheAnswerIsNotLost(t *testing.T) {
	working := make(chan struct{})
	defer close(working)
	first := true
	w := &worker{
		queue: "q", ctx: context.Background(), wake: make(chan struct{}, 1), held: map[string]*held{},
		handler: func(context.Context, *Job) error {
			if first {
				first = false
				return RetryLater(time.Millisecond)
			}
			<-working
			return nil
		},
		options: WorkerOptions{Concurrency: 1, Lease: time.Minute, Log: slog.New(slog.DiscardHandler)},
	}
	w.take(&topicsv1.Job{Seq: 1, LeaseId: "a", Deliveries: 1})
	<-w.wake
	returned := w.gathered()
	w.take(&topicsv1.Job{Seq: 1, LeaseId: "b", Deliveries: 2})
	w.settled(returned, nil)
	if w.statistics.Retried != 1 || w.statistics.Lost != 0 {
		t.Fatalf("%+v", w.statistics)
	}
	w.take(&topicsv1.Job{Seq: 1, LeaseId: "c", Deliveries: 3})
	if w.statistics.Lost != 1 {
		t.Fatalf("the lease of a job at work had ended: %+v", w.statistics)
	}
}
