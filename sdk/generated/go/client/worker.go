package client

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	topicsv1 "topics.test/sdk/topics/v1"
)

const (
	callJobs     = 1000            // the server's limit of a call
	flushTime    = 5 * time.Second // time for the last acks, and jobs in transit, at the end
	longestDelay = 24 * time.Hour
	lookTime     = 10 * time.Millisecond
)

// Job is a job of a queue, leased to this worker. It may come more than once: the work must bear that.
type Job struct {
	Record
	// Deliveries is the number of deliveries, including this one; from 1.
	Deliveries uint64
	// LeaseID is the identity of this delivery.
	LeaseID string
}

// Handler does a job. To return nil is to finish it; an error has it tried again. ctx ends when the lease is lost, with
// a cause of reason LeaseLost, and when a stopping worker has no time left for it.
type Handler func(ctx context.Context, job *Job) error

// RetryLater, returned by a handler, retries its job after the given time, regardless of the backoff. The delivery
// counts.
type RetryLater time.Duration

func (r RetryLater) Error() string { return "again in " + time.Duration(r).String() }

// Release, returned by a handler, gives its job back untried, for others to claim after the given time. The delivery
// does not count.
type Release time.Duration

func (r Release) Error() string { return "given back, for " + time.Duration(r).String() }

// WorkerOptions says how a worker works. The zero value takes every default.
type WorkerOptions struct {
	// Concurrency is the number of jobs that run at once, at most 1000. Default 1.
	Concurrency int
	// Node is the name of the worker, which no other must have. Default: a random one.
	Node string
	// Lease is the length of the leases. Default: that of the queue.
	Lease time.Duration
	// Backoff is the delay of a job after the given number of failed deliveries. Default: up to 1 s, doubled each time up
	// to 5 minutes.
	Backoff func(deliveries uint64) time.Duration
	// Drain is the time for running handlers at the end. Default 30 s.
	Drain time.Duration
	// Log gets failed handlers, lost leases and lost connections. Default: slog.Default().
	Log *slog.Logger
}

// WorkerStatistics are the counts of a worker. Lost jobs are not known to be finished: others may do them again.
type WorkerStatistics struct{ Acked, Retried, Released, Lost int }

type fate int

const (
	acked fate = iota
	retried
	released
)

type outcome struct {
	fate  fate
	delay time.Duration
}

// held is a job that is not settled yet.
type held struct {
	job    *Job
	ctx    context.Context
	cancel context.CancelCauseFunc
	until  time.Time // the end of its lease
	over   bool      // lost, or its handler is done: then the answer to its ack or nack has its outcome
	outcome
}

type worker struct {
	client  *Client
	queue   string
	handler Handler
	options WorkerOptions
	ctx     context.Context // ends the stream and every pause
	fail    context.CancelCauseFunc
	wake    chan struct{} // that the outbox has something

	mu         sync.Mutex
	held       map[string]*held // by lease
	waiting    []*held
	outbox     []*held
	running    int
	stopping   bool
	statistics WorkerStatistics
}

// Work does the jobs of a queue until ctx ends. Then it takes no more jobs and finishes the running ones, within
// options.Drain. The error is one that retries can't solve, such as a missing queue; nil after the end of ctx.
func (c *Client) Work(ctx context.Context, queue string, handler Handler, options WorkerOptions) (WorkerStatistics, error) {
	if options.Concurrency == 0 {
		options.Concurrency = 1
	}
	if options.Node == "" {
		options.Node = "worker-" + randomID()
	}
	if options.Backoff == nil {
		options.Backoff = backoffAfter
	}
	if options.Drain == 0 {
		options.Drain = 30 * time.Second
	}
	if options.Log == nil {
		options.Log = slog.Default()
	}
	options.Log = options.Log.With("queue", queue)
	over, fail := context.WithCancelCause(context.WithoutCancel(ctx))
	w := &worker{
		client: c, queue: queue, handler: handler, options: options, ctx: over, fail: fail,
		wake: make(chan struct{}, 1), held: map[string]*held{},
	}
	defer fail(nil)
	if err := w.findLease(ctx); err != nil {
		if ctx.Err() != nil {
			return WorkerStatistics{}, nil
		}
		return WorkerStatistics{}, err
	}
	var parts sync.WaitGroup
	for _, part := range []func(){w.feed, w.keep, w.settle} {
		parts.Go(part)
	}
	select {
	case <-ctx.Done():
	case <-over.Done():
	}
	w.drain()
	failed := context.Cause(over)
	fail(nil)
	parts.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.statistics, failed
}

func backoffAfter(deliveries uint64) time.Duration {
	longest := min(float64(time.Second)*math.Pow(2, float64(deliveries-1)), float64(5*time.Minute))
	return time.Duration(longest * (0.1 + 0.9*mathrand.Float64()))
}

// findLease asks for the length of the leases unless it is given.
func (w *worker) findLease(ctx context.Context) error {
	waiting := patience{retry: forever}
	for w.options.Lease == 0 {
		request := &topicsv1.GetTopicRequest{Topic: w.queue, Touch: proto.Bool(false)}
		reply, err := unary(ctx, callTimeout, w.client.Topics.GetTopic, request)
		if err != nil {
			if err := waiting.wait(ctx, err); err != nil {
				return err
			}
			continue
		}
		w.options.Lease = time.Duration(reply.State.Config.GetLeaseMs()) * time.Millisecond
		if w.options.Lease == 0 {
			w.options.Lease = 30 * time.Second // a log has none, and Work reports the error
		}
	}
	return nil
}

// feed receives jobs: one stream after the other, for as long as the worker takes jobs.
func (w *worker) feed() {
	waiting := patience{retry: forever}
	for w.wanted() {
		request := &topicsv1.WorkRequest{
			Topic: w.queue, Node: w.options.Node, Max: uint32(w.options.Concurrency),
			LeaseMs: proto.Uint64(uint64(w.options.Lease.Milliseconds())),
		}
		open := func(ctx context.Context) (frames[topicsv1.WorkResponse], error) {
			return w.client.Queues.Work(ctx, request)
		}
		err := stream(w.ctx, silence, open, func(response *topicsv1.WorkResponse) (bool, error) {
			waiting.renew()
			for _, job := range response.GetFrame().GetJobs().GetJobs() {
				w.take(job)
			}
			return true, nil
		})
		if w.ctx.Err() != nil {
			return
		}
		if !Transient(err) {
			w.fail(err)
			return
		}
		w.options.Log.Warn("no jobs come; trying again until they do", "error", err)
		w.extend() // the server may have taken back the stream's jobs
		if waiting.wait(w.ctx, err) != nil {
			return
		}
	}
}

func (w *worker) wanted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.stopping
}

func (w *worker) take(from *topicsv1.Job) {
	w.mu.Lock()
	defer w.mu.Unlock()
	job := &Job{
		Record: Record{
			Topic: w.queue, Seq: from.Seq, Time: time.UnixMilli(from.TsMs), Data: from.Data, Tag: from.Tag, Meta: from.Meta,
			Binary: from.Kind == topicsv1.RecordKind_RECORD_KIND_BINARY,
		},
		Deliveries: from.Deliveries,
		LeaseID:    from.LeaseId,
	}
	for _, other := range w.held {
		// The lease of a job at work had ended. That of one whose outcome is on its way may have ended by it: the answer tells.
		if other.job.Seq == job.Seq && !other.over {
			w.lose(other)
		}
	}
	taken := &held{job: job, until: time.Now().Add(w.options.Lease)}
	taken.ctx, taken.cancel = context.WithCancelCause(w.ctx)
	w.held[job.LeaseID] = taken
	if w.stopping {
		w.finish(taken, outcome{fate: released})
	} else {
		w.waiting = append(w.waiting, taken)
		w.begin()
	}
}

// begin starts handlers for waiting jobs, up to the concurrency. The lock is held.
func (w *worker) begin() {
	for w.running < w.options.Concurrency && len(w.waiting) > 0 {
		next := w.waiting[0]
		w.waiting = w.waiting[1:]
		if !next.over {
			w.running++
			go w.handle(next)
		}
	}
}

func (w *worker) handle(held *held) {
	err := w.handler(held.ctx, held.job)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running--
	var later RetryLater
	var release Release
	switch {
	case err == nil:
		w.finish(held, outcome{fate: acked})
	case errors.As(err, &release):
		w.finish(held, outcome{fate: released, delay: time.Duration(release)})
	case errors.As(err, &later):
		w.finish(held, outcome{fate: retried, delay: time.Duration(later)})
	default:
		delay := w.options.Backoff(held.job.Deliveries)
		if !held.over {
			w.options.Log.Warn("a job failed", "seq", held.job.Seq, "deliveries", held.job.Deliveries, "rests", delay, "error", err)
		}
		w.finish(held, outcome{fate: retried, delay: delay})
	}
	w.begin()
}

// finish sets the outcome of a job, unless it is lost: then its new holder decides. The lock is held.
func (w *worker) finish(held *held, outcome outcome) {
	if held.over {
		return
	}
	held.over = true
	outcome.delay = min(max(outcome.delay, 0), longestDelay)
	held.outcome = outcome
	w.outbox = append(w.outbox, held)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// lose gives up a job. The lock is held.
func (w *worker) lose(held *held) {
	if w.held[held.job.LeaseID] == nil {
		return
	}
	delete(w.held, held.job.LeaseID)
	held.over = true
	w.statistics.Lost++
	w.options.Log.Warn("a lease was lost; others may have the job by now", "seq", held.job.Seq)
	held.cancel(&Error{Reason: LeaseLost, Message: "others may have the job by now"})
}

// keep extends leases, each when a quarter of it is over.
func (w *worker) keep() {
	for sleep(w.ctx, w.options.Lease/4) == nil {
		w.extend()
	}
}

// extend extends the held leases. Those that the server does not know any more, or that have ended, are lost.
func (w *worker) extend() {
	w.mu.Lock()
	var all []*held
	for each := range maps.Values(w.held) {
		if !each.over {
			all = append(all, each)
		}
	}
	w.mu.Unlock()
	for batch := range slices.Chunk(all, callJobs) {
		request := &topicsv1.ExtendRequest{Topic: w.queue, Node: w.options.Node, LeaseMs: proto.Uint64(uint64(w.options.Lease.Milliseconds()))}
		request.Seqs, request.LeaseIds = named(batch)
		sent := time.Now()
		reply, err := unary(w.ctx, max(w.options.Lease/3, time.Second), w.client.Queues.Extend, request)
		if err != nil {
			if w.ctx.Err() == nil && !Transient(err) {
				w.fail(err)
			}
			continue
		}
		w.mu.Lock()
		for _, each := range batch {
			if !slices.Contains(reply.Skipped, each.job.Seq) {
				each.until = sent.Add(w.options.Lease)
			} else if !each.over {
				w.lose(each)
			}
		}
		w.mu.Unlock()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, each := range w.held {
		if !each.over && each.until.Before(time.Now()) {
			w.lose(each)
		}
	}
}

func named(batch []*held) (seqs []uint64, leases []string) {
	for _, each := range batch {
		seqs, leases = append(seqs, each.job.Seq), append(leases, each.job.LeaseID)
	}
	return seqs, leases
}

// settle sends the outcomes of jobs, many in a call, retried until the server answers: leases fence each call.
func (w *worker) settle() {
	waiting := patience{retry: forever}
	for {
		batch := w.gathered()
		if batch == nil {
			select {
			case <-w.wake:
				continue
			case <-w.ctx.Done():
				return
			}
		}
		for {
			skipped, err := w.tell(batch)
			if err == nil {
				waiting.renew()
				w.settled(batch, skipped)
				break
			}
			if w.ctx.Err() != nil {
				return
			}
			if !Transient(err) {
				w.fail(err)
				return
			}
			if waiting.wait(w.ctx, err) != nil {
				return
			}
		}
	}
}

// gathered is the longest run of jobs at the front of the outbox that fits into one call.
func (w *worker) gathered() []*held {
	w.mu.Lock()
	defer w.mu.Unlock()
	count := 0
	for count < min(len(w.outbox), callJobs) && w.outbox[count].outcome == w.outbox[0].outcome {
		count++
	}
	if count == 0 {
		return nil
	}
	batch := w.outbox[:count:count]
	w.outbox = w.outbox[count:]
	return batch
}

func (w *worker) tell(batch []*held) ([]uint64, error) {
	seqs, leases := named(batch)
	if batch[0].fate == acked {
		request := &topicsv1.AckRequest{Topic: w.queue, Node: w.options.Node, Seqs: seqs, LeaseIds: leases}
		reply, err := unary(w.ctx, callTimeout, w.client.Queues.Ack, request)
		return reply.GetSkipped(), err
	}
	request := &topicsv1.NackRequest{
		Topic: w.queue, Node: w.options.Node, Seqs: seqs, LeaseIds: leases,
		DelayMs: uint64(batch[0].delay.Milliseconds()), Mode: topicsv1.NackMode_NACK_MODE_RETRY,
	}
	if batch[0].fate == released {
		request.Mode = topicsv1.NackMode_NACK_MODE_RELEASE
	}
	reply, err := unary(w.ctx, callTimeout, w.client.Queues.Nack, request)
	return reply.GetSkipped(), err
}

func (w *worker) settled(batch []*held, skipped []uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, each := range batch {
		if slices.Contains(skipped, each.job.Seq) {
			w.lose(each)
			continue
		}
		if w.held[each.job.LeaseID] == nil {
			continue
		}
		delete(w.held, each.job.LeaseID)
		each.cancel(nil)
		switch each.fate {
		case acked:
			w.statistics.Acked++
		case retried:
			w.statistics.Retried++
		case released:
			w.statistics.Released++
		}
	}
}

// drain brings the worker to an end in order.
func (w *worker) drain() {
	ends := time.Now().Add(w.options.Drain)
	w.mu.Lock()
	w.stopping = true
	w.mu.Unlock()
	w.stopped() // else each job that is settled makes room for another
	w.mu.Lock()
	for _, each := range w.waiting {
		w.finish(each, outcome{fate: released})
	}
	w.waiting = nil
	w.mu.Unlock()
	for w.busy() && time.Now().Before(ends) {
		time.Sleep(lookTime)
	}
	w.mu.Lock()
	for _, each := range w.held {
		if !each.over {
			w.finish(each, outcome{fate: released})
			each.cancel(context.Canceled)
		}
	}
	w.mu.Unlock()
	for ends = time.Now().Add(flushTime); time.Now().Before(ends) && (w.busy() || w.ctx.Err() == nil && w.stopped() > 0); {
		time.Sleep(lookTime)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, each := range w.held {
		w.lose(each)
	}
}

// busy reports whether a held job can still be settled.
func (w *worker) busy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.held) > 0 && w.ctx.Err() == nil
}

// stopped makes the server send no more jobs. It returns the number of sent jobs that are not settled; 0 without an
// answer.
func (w *worker) stopped() uint64 {
	request := &topicsv1.StopWorkRequest{Topic: w.queue, Node: w.options.Node}
	reply, err := unary(w.ctx, flushTime, w.client.Queues.StopWork, request)
	if err != nil {
		return 0
	}
	return reply.Held
}
