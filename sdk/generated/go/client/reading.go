package client

import (
	"context"
	"errors"
	"io"
	"iter"
	"maps"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	topicsv1 "topics.test/sdk/topics/v1"
)

// ReadOptions are the options of a read. The zero value is partition 0, from the earliest record.
type ReadOptions struct {
	Partition uint32
	// From is the cursor: records with a greater seq come.
	From uint64
	// Last, instead of From, starts this many records before the head.
	Last *uint32
	// Follow waits for new records at the head instead of ending there.
	Follow bool
	// Tag, or TagPrefix, lets only records come whose tag is this, or begins so.
	Tag, TagPrefix *string
}

// Reading is a read of one partition. What was handed out counts as dealt with: to iterate again, also after an error, is
// to go on behind it. One iteration at a time.
type Reading struct {
	client  *Client
	request *topicsv1.BulkDiffRequest
	done    bool
}

// Read reads a topic from a cursor to the current head, or without end.
func (c *Client) Read(topic string, options ReadOptions) *Reading {
	request := &topicsv1.BulkDiffRequest{
		Topic: topic, Partition: options.Partition, FromSeq: options.From, Last: options.Last, Follow: options.Follow,
		IncludeTags: true, Filter: tagMatch(options.Tag, options.TagPrefix),
	}
	return &Reading{client: c, request: request}
}

// Cursor is the From to resume with; false while it is unknown, for a read of the last records.
func (r *Reading) Cursor() (uint64, bool) { return r.request.FromSeq, r.request.Last == nil }

// Events yields *Record and *Gap. It waits for an absent server and resumes without loss or repeat. The last pair has
// the error that ended it: an *Error, or the error of ctx.
func (r *Reading) Events(ctx context.Context) iter.Seq2[Event, error] {
	open := func(ctx context.Context) (frames[topicsv1.BulkDiffResponse], error) {
		return r.client.Topics.BulkDiff(ctx, proto.CloneOf(r.request))
	}
	return func(yield func(Event, error) bool) {
		if r.done {
			return
		}
		err := resume(ctx, r.client.retry, 0, open, func(frame *topicsv1.BulkDiffResponse) (bool, error) {
			if !r.request.Follow && r.request.EndSeq == nil {
				r.request.EndSeq = &frame.HeadSeq // a resumed call ends at the end of the first one
			}
			if frame.Tombstone != nil {
				gap := gapOf(r.request.Topic, frame.Partition, frame.Tombstone)
				r.at(gap.next())
				if !yield(gap, nil) {
					return false, nil
				}
			}
			if frame.Records != nil {
				records, err := recordsOfColumns(r.request.Topic, frame.Partition, frame.Records)
				if err != nil {
					return false, err
				}
				for _, record := range records {
					r.at(record.(*Record).Seq)
					if !yield(record, nil) {
						return false, nil
					}
				}
			}
			r.at(frame.NextFromSeq)
			r.done = frame.Done
			return !frame.Done, nil
		})
		if err != nil {
			yield(nil, err)
		}
	}
}

func (r *Reading) at(seq uint64) { r.request.FromSeq, r.request.Last = seq, nil }

// WatchOptions are the options of a watch.
type WatchOptions struct {
	// Cursor is where an earlier watch was; it wins over where topics begin.
	Cursor map[string]uint64
	// Tag, or TagPrefix, lets only records come whose tag is this, or begins so.
	Tag, TagPrefix *string
	// Lenient leaves out topics that are not there instead of failing.
	Lenient bool
}

// Tail, as the beginning of a topic in a watch, is its head of that moment.
const Tail = ^uint64(0)

// Watching is a watch of many topics. What was handed out counts as dealt with. One iteration at a time.
type Watching struct {
	client  *Client
	request *topicsv1.WatchRequest
	cursor  map[string]uint64
	began   bool
}

// Watch follows many topics at once, each behind the seq that it maps to, or from Tail. A name that ends in * stands for
// all topics that begin so, also those that are made later; topic@N is a partition.
func (c *Client) Watch(topics map[string]uint64, options WatchOptions) *Watching {
	subscription := &topicsv1.WatchSubscription{
		Topics: map[string]*topicsv1.WatchTopic{}, Limit: 1000, HeartbeatMs: proto.Uint64(uint64(heartbeat.Milliseconds())),
		IncludeTags: true, Filter: tagMatch(options.Tag, options.TagPrefix),
	}
	for name, from := range topics {
		subscription.Topics[name] = &topicsv1.WatchTopic{FromSeq: from}
		if from == Tail {
			subscription.Topics[name] = &topicsv1.WatchTopic{Tail: true}
		}
	}
	cursor := map[string]uint64{}
	maps.Copy(cursor, options.Cursor)
	return &Watching{client: c, request: &topicsv1.WatchRequest{Subscription: subscription, Lenient: options.Lenient}, cursor: cursor}
}

// Cursor has the last seq handed out of each topic, or of topic@N for a partition N above 0: given to another watch, it
// goes on right there. Not to be called while another goroutine iterates.
func (w *Watching) Cursor() map[string]uint64 { return maps.Clone(w.cursor) }

// Events yields events, without end unless all topics are deleted. It waits for an absent server and resumes without
// loss or repeat. The last pair has the error that ended it: an *Error, or the error of ctx.
func (w *Watching) Events(ctx context.Context) iter.Seq2[Event, error] {
	open := func(ctx context.Context) (frames[topicsv1.WatchResponse], error) {
		request := proto.CloneOf(w.request)
		request.Subscription.Cursor = w.Cursor()
		request.Lenient = request.Lenient || w.began
		return w.client.Watches.Watch(ctx, request)
	}
	return func(yield func(Event, error) bool) {
		followed := w.request.Subscription.Topics
		if w.began && len(followed) == 0 {
			return
		}
		err := resume(ctx, w.client.retry, silence, open, func(response *topicsv1.WatchResponse) (bool, error) {
			frame := response.GetFrame()
			for _, event := range w.events(frame) {
				switch event := event.(type) {
				case *Record:
					w.cursor[place(event.Topic, event.Partition)] = event.Seq
				case *Gap:
					w.cursor[place(event.Topic, event.Partition)] = event.next()
				case *TopicDeleted:
					w.departed(place(event.Topic, event.Partition))
				}
				if !yield(event, nil) {
					return false, nil
				}
			}
			if frame.GetTopicDeleted() == nil {
				maps.Copy(w.cursor, frame.GetCursor())
			}
			return len(followed) > 0, nil
		})
		if err != nil {
			yield(nil, err)
		}
	}
}

func (w *Watching) events(frame *topicsv1.Frame) []Event {
	switch kind := frame.GetKind().(type) {
	case *topicsv1.Frame_Subscribed:
		return w.subscribed(kind.Subscribed.Topics)
	case *topicsv1.Frame_Records:
		return recordsOfRows(kind.Records.Topic, kind.Records.Partition, kind.Records.Records)
	case *topicsv1.Frame_Tombstone:
		return []Event{gapOf(kind.Tombstone.Topic, kind.Tombstone.Partition, kind.Tombstone.Tombstone)}
	case *topicsv1.Frame_CaughtUp:
		return []Event{&CaughtUp{kind.CaughtUp.Topic, kind.CaughtUp.Partition, kind.CaughtUp.HeadSeq}}
	case *topicsv1.Frame_TopicDeleted:
		return []Event{&TopicDeleted{kind.TopicDeleted.Topic, kind.TopicDeleted.Partition, kind.TopicDeleted.HeadSeq}}
	case *topicsv1.Frame_Error:
		if !kind.Error.Terminal { // a terminal one is the status of the call
			reason := strings.ToLower(strings.TrimPrefix(kind.Error.Reason.String(), "ERROR_REASON_"))
			return []Event{&Advice{reason, kind.Error.Message, kind.Error.Topics}}
		}
	}
	return nil
}

// subscribed takes in which topics are followed. A topic deleted while no stream was open is reported as if within a
// stream; topics added by a prefix are followed from their first record.
func (w *Watching) subscribed(there map[string]*topicsv1.TopicPosition) []Event {
	var events []Event
	topics := w.request.Subscription.Topics
	for name, head := range w.cursor {
		if there[name] == nil && w.wants(name) {
			w.departed(name)
			if topic, partition := placed(name); w.began {
				events = append(events, &TopicDeleted{topic, partition, head})
			}
		}
	}
	w.began = true
	for name := range topics {
		if strings.HasSuffix(name, "*") {
			topics[name] = &topicsv1.WatchTopic{}
		} else if there[name] == nil {
			delete(topics, name)
		}
	}
	return events
}

func (w *Watching) wants(name string) bool {
	topics := w.request.Subscription.Topics
	if topics[name] != nil {
		return true
	}
	for key := range topics {
		if prefix, is := strings.CutSuffix(key, "*"); is && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

func (w *Watching) departed(name string) {
	delete(w.cursor, name)
	delete(w.request.Subscription.Topics, name)
}

// frames is a stream of the server's.
type frames[Frame any] interface{ Recv() (*Frame, error) }

// resume calls deal with the frames of one stream after the other, until deal asks to stop. A stream
// without a frame for as long as silent, if that is not zero, is broken.
func resume[Frame any](
	ctx context.Context, retry Retry, silent time.Duration,
	open func(context.Context) (frames[Frame], error), deal func(*Frame) (bool, error),
) error {
	waiting := patience{retry: retry}
	for {
		err := stream(ctx, silent, open, func(frame *Frame) (bool, error) {
			waiting.renew()
			return deal(frame)
		})
		if err == nil {
			return nil
		}
		if err := waiting.wait(ctx, err); err != nil {
			return err
		}
	}
}

// stream calls deal with the frames of one stream, as resume does.
func stream[Frame any](
	ctx context.Context, silent time.Duration, open func(context.Context) (frames[Frame], error), deal func(*Frame) (bool, error),
) error {
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	opened, err := open(limited)
	for err == nil {
		var alarm *time.Timer
		if silent > 0 {
			alarm = time.AfterFunc(silent, cancel)
		}
		var frame *Frame
		frame, err = opened.Recv()
		if alarm != nil {
			alarm.Stop()
		}
		if err == nil {
			more, err := deal(frame)
			if err != nil || !more {
				return err
			}
		}
	}
	if errors.Is(err, io.EOF) {
		return broken("the server ended the stream")
	}
	return failure(ctx, err)
}

func tagMatch(tag, prefix *string) *topicsv1.TagMatch {
	if tag != nil {
		return &topicsv1.TagMatch{Rule: &topicsv1.TagMatch_Eq{Eq: *tag}}
	}
	if prefix != nil {
		return &topicsv1.TagMatch{Rule: &topicsv1.TagMatch_Prefix{Prefix: *prefix}}
	}
	return nil
}

// place is the key of a partition in a cursor.
func place(topic string, partition uint32) string {
	if partition == 0 {
		return topic
	}
	return topic + "@" + strconv.FormatUint(uint64(partition), 10)
}

func placed(name string) (string, uint32) {
	topic, number, _ := strings.Cut(name, "@")
	partition, _ := strconv.ParseUint(number, 10, 32)
	return topic, uint32(partition)
}
