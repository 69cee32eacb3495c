package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	topicsv1 "topics.test/sdk/topics/v1"
)

const leastAttempt = time.Second

// NewRecord is a record to write.
type NewRecord struct {
	// Value is any value for json.Marshal, or []byte for a binary record; json.RawMessage is written unchanged.
	Value any
	Tag   *string
	Node  *string
	// Meta, if not nil, is a value that json.Marshal encodes as an object.
	Meta any
}

func (n NewRecord) encoded() (*topicsv1.AppendRecord, error) {
	record := &topicsv1.AppendRecord{Kind: topicsv1.RecordKind_RECORD_KIND_JSON, Tag: n.Tag, Node: n.Node}
	var err error
	switch value := n.Value.(type) {
	case []byte:
		record.Kind, record.Data = topicsv1.RecordKind_RECORD_KIND_BINARY, value
	case json.RawMessage:
		record.Data = value
	default:
		record.Data, err = json.Marshal(value)
	}
	if n.Meta != nil && err == nil {
		record.Meta, err = json.Marshal(n.Meta)
	}
	if err != nil {
		return nil, &Error{
			Reason: "invalid_request", Number: topicsv1.ErrorReason_ERROR_REASON_INVALID_REQUEST,
			Message: "the value is no JSON: " + err.Error(), cause: err,
		}
	}
	return record, nil
}

// AppendOptions are the options of an append. The zero value is partition 0 and a generated key.
type AppendOptions struct {
	Partition uint32
	// IdempotencyKey is one of your own; one is made otherwise, so that a write whose answer was lost is not stored twice.
	IdempotencyKey *string
	// Delay, of a queue, is the time that the jobs stay hidden.
	Delay time.Duration
	// Priority, of a queue, is how urgent they are, 0 to 9.
	Priority uint32
}

// Append appends up to 10,000 records, all or none. It answers once they are durable for the class of the topic. A
// write whose answer is lost is retried under its key, for as long as the topic knows it; *Error with OutcomeUnknown
// after that.
func (c *Client) Append(ctx context.Context, topic string, options AppendOptions, records ...NewRecord) (*topicsv1.AppendResponse, error) {
	request := &topicsv1.AppendRequest{
		Topic: topic, Partition: options.Partition, IdempotencyKey: options.IdempotencyKey,
		DelayMs: uint64(options.Delay.Milliseconds()), Priority: options.Priority, ReturnSeqs: proto.Bool(false),
	}
	for _, record := range records {
		encoded, err := record.encoded()
		if err != nil {
			return nil, err
		}
		request.Records = append(request.Records, encoded)
	}
	return c.appendOnce(ctx, request)
}

// appendOnce makes a write again while that cannot store it twice.
func (c *Client) appendOnce(ctx context.Context, request *topicsv1.AppendRequest) (*topicsv1.AppendResponse, error) {
	if request.IdempotencyKey == nil {
		request.IdempotencyKey = proto.String(randomID())
	}
	waiting := patience{retry: c.retry}
	var lost error // error of the first attempt with an unknown outcome
	var lostAt time.Time
	for {
		began := time.Now().Round(0) // wall clock: the server's time continues while this machine sleeps
		reply, err := c.attempt(ctx, request, lost, lostAt)
		if err == nil {
			return reply, nil
		}
		var known *Error
		isKnown := errors.As(err, &known)
		if lost != nil && isKnown && !known.transient && known.Reason != OutcomeUnknown && !provesAbsence(known) {
			return nil, outcomeUnknown(err)
		}
		if lost == nil && isKnown && known.transient && known.mayBeDone {
			lost, lostAt = err, began
		}
		if last := waiting.wait(ctx, err); last != nil {
			if lost != nil && Transient(last) {
				return nil, outcomeUnknown(lost)
			}
			return nil, last
		}
	}
}

func (c *Client) attempt(ctx context.Context, request *topicsv1.AppendRequest, lost error, lostAt time.Time) (*topicsv1.AppendResponse, error) {
	timeout := callTimeout
	if lost != nil {
		window, err := c.keyWindow(ctx, request.Topic)
		if err != nil {
			return nil, err
		}
		left := window - time.Now().Round(0).Sub(lostAt)
		if left < leastAttempt {
			return nil, outcomeUnknown(lost)
		}
		timeout = min(timeout, left)
	}
	return unary(ctx, timeout, c.Topics.Append, request)
}

// keyWindow is the time for which a topic remembers the key of a write.
func (c *Client) keyWindow(ctx context.Context, topic string) (time.Duration, error) {
	reply, err := unary(ctx, callTimeout, c.Topics.GetTopic, &topicsv1.GetTopicRequest{Topic: topic, Touch: proto.Bool(false)})
	switch Reason(err) {
	case "":
		if err != nil {
			return 0, err
		}
		return time.Duration(reply.State.Config.GetIdempotencyWindowMs()) * time.Millisecond, nil
	case "topic_not_found":
		return math.MaxInt64, nil // the write is nowhere
	case "forbidden":
		return 2 * time.Minute, nil // the key may write only; this is the default
	}
	return 0, err
}

// provesAbsence reports whether an error means that the server does not know the write's key: had it been stored, it
// would have said so.
func provesAbsence(err *Error) bool {
	return err.Reason == "invalid_request" || err.Reason == "topic_full"
}

func outcomeUnknown(cause error) *Error {
	message := "the answer to a write was lost: look whether it is stored before you write it again"
	return &Error{Reason: OutcomeUnknown, Message: message, mayBeDone: true, cause: cause}
}

// ProducerOptions says how a producer works. The zero value takes every default.
type ProducerOptions struct {
	// BatchRecords is the maximum number of records in a batch, at most 10,000. Default 1000.
	BatchRecords int
	// BatchBytes is the maximum size of a batch. Default 1 MiB.
	BatchBytes int
	// MaxPending is the maximum number of unanswered records, over all topics; Send waits for space beyond it. Default
	// 10,000.
	MaxPending int
}

// Producer sends records in batches, those of a partition in their order: one batch is in flight, and records sent
// meanwhile form the next. After a failure the next batches are still sent. Safe for concurrent use.
type Producer struct {
	client  *Client
	options ProducerOptions
	ctx     context.Context
	cancel  context.CancelFunc
	room    chan struct{} // holds one for each record that is pending

	mu     sync.Mutex
	lanes  map[string]*lane
	idle   chan struct{} // closed once nothing is pending; nil without waiters
	count  int
	failed error
	closed bool
}

// Delivery is a record on its way.
type Delivery struct {
	done chan struct{}
	seq  uint64
	err  error
}

// Wait gives the seq of the record once it is stored.
func (d *Delivery) Wait(ctx context.Context) (uint64, error) {
	select {
	case <-d.done:
		return d.seq, d.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

type lane struct {
	topic     string
	partition uint32
	waiting   []pending
}

type pending struct {
	record   *topicsv1.AppendRecord
	delivery *Delivery
}

// NewProducer makes a producer. Close it.
func (c *Client) NewProducer(options ProducerOptions) *Producer {
	if options.BatchRecords == 0 {
		options.BatchRecords = 1000
	}
	if options.BatchBytes == 0 {
		options.BatchBytes = 1 << 20
	}
	if options.MaxPending == 0 {
		options.MaxPending = 10_000
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Producer{
		client: c, options: options, ctx: ctx, cancel: cancel,
		room: make(chan struct{}, options.MaxPending), lanes: map[string]*lane{},
	}
}

// Send hands over a record, once there is room for it; it waits for that, not for the answer.
func (p *Producer) Send(ctx context.Context, topic string, partition uint32, record NewRecord) (*Delivery, error) {
	encoded, err := record.encoded()
	if err != nil {
		return nil, err
	}
	select {
	case p.room <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		<-p.room
		return nil, errors.New("the producer is closed")
	}
	delivery := &Delivery{done: make(chan struct{})}
	p.count++
	key := place(topic, partition)
	to := p.lanes[key]
	if to == nil {
		to = &lane{topic: topic, partition: partition}
		p.lanes[key] = to
		go p.run(key, to)
	}
	to.waiting = append(to.waiting, pending{encoded, delivery})
	return delivery, nil
}

// Flush waits until all that was sent is answered. It gives the first failure since the last time.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	if p.count > 0 {
		if p.idle == nil {
			p.idle = make(chan struct{})
		}
		idle := p.idle
		p.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		p.mu.Lock()
	}
	defer p.mu.Unlock()
	failed := p.failed
	p.failed = nil
	return failed
}

// Close flushes and takes no more records. If ctx ends first, it gives up the unanswered ones.
func (p *Producer) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	defer p.cancel()
	return p.Flush(ctx)
}

// run sends the batches of a partition until none is left.
func (p *Producer) run(key string, of *lane) {
	for {
		batch := p.taken(key, of)
		if batch == nil {
			return
		}
		request := &topicsv1.AppendRequest{Topic: of.topic, Partition: of.partition, ReturnSeqs: proto.Bool(false)}
		for _, each := range batch {
			request.Records = append(request.Records, each.record)
		}
		reply, err := p.client.appendOnce(p.ctx, request)
		for i, each := range batch {
			each.delivery.err = err
			each.delivery.seq = reply.GetFirstSeq() + uint64(i)
			close(each.delivery.done)
		}
		p.settled(len(batch), err)
	}
}

// taken is the next batch; nil, and the end of the lane, where none is left.
func (p *Producer) taken(key string, of *lane) []pending {
	p.mu.Lock()
	defer p.mu.Unlock()
	size, count := 0, 0
	for _, each := range of.waiting {
		size += proto.Size(each.record)
		if count > 0 && (count >= p.options.BatchRecords || size > p.options.BatchBytes) {
			break
		}
		count++
	}
	if count == 0 {
		delete(p.lanes, key)
		return nil
	}
	batch := of.waiting[:count:count]
	of.waiting = of.waiting[count:]
	return batch
}

func (p *Producer) settled(count int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil && p.failed == nil {
		p.failed = fmt.Errorf("a batch of %d records failed: %w", count, err)
	}
	p.count -= count
	for range count {
		<-p.room
	}
	if p.count == 0 && p.idle != nil {
		close(p.idle)
		p.idle = nil
	}
}
