// The scenario of facts.json with the generated Go code: one step after the other, each with its facts.
//
// Environment: TOPICS_ADDRESS, TOPICS_KEY (every scope), TOPICS_READER_KEY (read alone), TOPICS_FACTS (the file).
// The server is fresh and takes two topics.
package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	pb "topics.test/sdk/topics/v1"
)

const callTime = 20 * time.Second

type facts map[string]any

type step struct {
	name string
	run  func() (facts, error)
}

type scenario struct {
	topics    pb.TopicsServiceClient
	queues    pb.QueueServiceClient
	watches   pb.WatchServiceClient
	anonymous context.Context
	keyed     context.Context
	reader    context.Context
}

func TestScenario(t *testing.T) {
	connection, err := grpc.NewClient(env(t, "TOPICS_ADDRESS"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	anonymous, cancel := context.WithTimeout(context.Background(), 3*callTime)
	defer cancel()
	s := &scenario{
		topics:    pb.NewTopicsServiceClient(connection),
		queues:    pb.NewQueueServiceClient(connection),
		watches:   pb.NewWatchServiceClient(connection),
		anonymous: anonymous,
		keyed:     bearer(anonymous, env(t, "TOPICS_KEY")),
		reader:    bearer(anonymous, env(t, "TOPICS_READER_KEY")),
	}
	text, err := os.ReadFile(env(t, "TOPICS_FACTS"))
	if err != nil {
		t.Fatal(err)
	}
	var expected map[string]any
	if err := json.Unmarshal(text, &expected); err != nil {
		t.Fatal(err)
	}
	steps := []step{
		{"create", s.create}, {"append", s.append}, {"gap", s.gap}, {"delete", s.delete}, {"watch", s.watch},
		{"queue", s.queue}, {"error", s.missing}, {"retry", s.oneTooMany}, {"no_key", s.noKey},
		{"wrong_key", s.wrongKey}, {"no_scope", s.noScope}, {"repeatable", s.repeatable},
	}
	if len(steps) != len(expected) {
		t.Fatalf("%d steps, but facts of %d", len(steps), len(expected))
	}
	for _, step := range steps {
		t.Run(step.name, func(t *testing.T) {
			seen, err := step.run()
			if err != nil {
				t.Fatal(err)
			}
			if same := plain(t, seen); !reflect.DeepEqual(same, expected[step.name]) {
				t.Fatalf("saw %v, expected %v", same, expected[step.name])
			}
		})
		if t.Failed() {
			return // the steps build on each other
		}
	}
}

func (s *scenario) create() (facts, error) {
	request := &pb.PutTopicRequest{Topic: "events", Config: &pb.TopicConfig{CapRecords: proto.Uint64(3)}}
	put, err := s.topics.PutTopic(s.keyed, request)
	if err != nil {
		return nil, err
	}
	again, err := s.topics.PutTopic(s.keyed, request)
	if err != nil {
		return nil, err
	}
	return facts{
		"created":       put.Created,
		"created_again": again.Created,
		"type":          put.Config.GetType(),
		"cap_records":   put.Config.GetCapRecords(),
		"partitions":    put.PartitionCount,
	}, nil
}

func (s *scenario) append() (facts, error) {
	request := &pb.AppendRequest{Topic: "events", IdempotencyKey: proto.String("import-1")}
	for n, tag := range []*string{proto.String("odd"), proto.String("even"), proto.String("odd"), proto.String("even"), nil} {
		data := fmt.Appendf(nil, `{"n": %d}`, n+1)
		request.Records = append(request.Records, &pb.AppendRecord{Data: data, Tag: tag})
	}
	first, err := s.topics.Append(s.keyed, request)
	if err != nil {
		return nil, err
	}
	again, err := s.topics.Append(s.keyed, request)
	if err != nil {
		return nil, err
	}
	return facts{
		"seqs":          first.Seqs,
		"deduped":       first.Deduped,
		"again_seqs":    again.Seqs,
		"again_deduped": again.Deduped,
		"head":          again.HeadSeq,
	}, nil
}

func (s *scenario) gap() (facts, error) {
	page, err := s.topics.Diff(s.keyed, &pb.DiffRequest{Topic: "events", IncludeTags: true})
	if err != nil {
		return nil, err
	}
	var tags []*string
	for _, record := range page.Records {
		tags = append(tags, record.Tag)
	}
	return facts{
		"gap_from":  page.Tombstone.GetGapFrom(),
		"gap_to":    page.Tombstone.GetGapTo(),
		"reason":    page.Tombstone.GetReason(),
		"missed":    page.Tombstone.GetMissedEstimate(),
		"seqs":      seqs(page.Records),
		"tags":      tags,
		"data":      data(page.Records),
		"next":      page.NextFromSeq,
		"caught_up": page.CaughtUp,
	}, nil
}

func (s *scenario) delete() (facts, error) {
	even := &pb.TagMatch{Rule: &pb.TagMatch_Eq{Eq: "even"}}
	deleted, err := s.topics.DeleteRecords(s.keyed, &pb.DeleteRecordsRequest{Topic: "events", Match: even})
	if err != nil {
		return nil, err
	}
	page, err := s.topics.Diff(s.keyed, &pb.DiffRequest{Topic: "events", FromSeq: 2})
	if err != nil {
		return nil, err
	}
	return facts{
		"deleted": deleted.Deleted,
		"left":    deleted.Count,
		"seqs":    seqs(page.Records),
		"gap":     page.Tombstone != nil,
	}, nil
}

func (s *scenario) watch() (facts, error) {
	watching, stop := context.WithTimeout(s.keyed, callTime)
	defer stop()
	stream, err := s.watches.Watch(watching, &pb.WatchRequest{Subscription: &pb.WatchSubscription{
		Topics: map[string]*pb.WatchTopic{"events": {FromSeq: 2}},
	}})
	if err != nil {
		return nil, err
	}
	cursor := map[string]uint64{}
	var records []*pb.Record
	next := func() (*pb.Frame, error) {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil, errors.New("the stream ended too early")
		} else if err != nil {
			return nil, err
		}
		frame := response.Frame
		records = append(records, frame.GetRecords().GetRecords()...)
		for topic, seq := range frame.Cursor {
			cursor[topic] = seq
		}
		return frame, nil
	}
	subscribed, err := next()
	if err != nil {
		return nil, err
	}
	var caughtUp *pb.CaughtUp
	for caughtUp == nil {
		frame, err := next()
		if err != nil {
			return nil, err
		}
		caughtUp = frame.GetCaughtUp()
	}
	backlog := seqs(records)
	records = nil
	one := []*pb.AppendRecord{{Data: []byte(`{"n": 6}`)}}
	if _, err := s.topics.Append(s.keyed, &pb.AppendRequest{Topic: "events", Records: one}); err != nil {
		return nil, err
	}
	for len(records) == 0 {
		if _, err := next(); err != nil {
			return nil, err
		}
	}
	return facts{
		"from":      subscribed.GetSubscribed().GetTopics()["events"].GetFromSeq(),
		"backlog":   backlog,
		"caught_up": caughtUp.HeadSeq,
		"live":      seqs(records),
		"live_data": data(records),
		"cursor":    cursor["events"],
	}, nil
}

func (s *scenario) queue() (facts, error) {
	config := &pb.TopicConfig{Type: pb.TopicType_TOPIC_TYPE_QUEUE.Enum()}
	if _, err := s.topics.PutTopic(s.keyed, &pb.PutTopicRequest{Topic: "jobs", Config: config}); err != nil {
		return nil, err
	}
	two := []*pb.AppendRecord{{Data: []byte("1")}, {Data: []byte("2")}}
	if _, err := s.topics.Append(s.keyed, &pb.AppendRequest{Topic: "jobs", Records: two}); err != nil {
		return nil, err
	}
	claim := func(want int) ([]*pb.Job, error) {
		reply, err := s.queues.Claim(s.keyed, &pb.ClaimRequest{Topic: "jobs", Node: "worker", Max: 10})
		if err == nil && len(reply.Claimed) != want {
			err = fmt.Errorf("claimed %v, wanted %d", reply.Claimed, want)
		}
		return reply.GetClaimed(), err
	}
	ack := func(job *pb.Job) (*pb.AckResponse, error) {
		seqs, leases := []uint64{job.Seq}, []string{job.LeaseId}
		return s.queues.Ack(s.keyed, &pb.AckRequest{Topic: "jobs", Node: "worker", Seqs: seqs, LeaseIds: leases})
	}
	claimed, err := claim(2)
	if err != nil {
		return nil, err
	}
	acked, err := ack(claimed[0])
	if err != nil {
		return nil, err
	}
	nacked, err := s.queues.Nack(s.keyed, &pb.NackRequest{
		Topic: "jobs", Node: "worker", Seqs: []uint64{claimed[1].Seq}, LeaseIds: []string{claimed[1].LeaseId},
	})
	if err != nil {
		return nil, err
	}
	again, err := claim(1)
	if err != nil {
		return nil, err
	}
	stale, err := ack(claimed[1])
	if err != nil {
		return nil, err
	}
	last, err := ack(again[0])
	if err != nil {
		return nil, err
	}
	return facts{
		"claimed":          []uint64{claimed[0].Seq, claimed[1].Seq},
		"deliveries":       []uint64{claimed[0].Deliveries, claimed[1].Deliveries},
		"acked":            acked.Acked,
		"nacked":           nacked.Nacked,
		"again":            []uint64{again[0].Seq},
		"again_deliveries": []uint64{again[0].Deliveries},
		"stale_acked":      stale.Acked,
		"stale_skipped":    stale.Skipped,
		"last_acked":       last.Acked,
		"ready":            last.Ready,
		"in_flight":        last.InFlight,
	}, nil
}

func (s *scenario) missing() (facts, error) {
	_, err := s.topics.GetTopic(s.keyed, &pb.GetTopicRequest{Topic: "nowhere"})
	return refused(err)
}

func (s *scenario) oneTooMany() (facts, error) {
	_, err := s.topics.PutTopic(s.keyed, &pb.PutTopicRequest{Topic: "one-too-many"})
	return refused(err)
}

func (s *scenario) noKey() (facts, error) {
	_, err := s.topics.ListTopics(s.anonymous, &pb.ListTopicsRequest{})
	return refused(err)
}

func (s *scenario) wrongKey() (facts, error) {
	_, err := s.topics.ListTopics(bearer(s.anonymous, "a-wrong-key"), &pb.ListTopicsRequest{})
	return refused(err)
}

func (s *scenario) noScope() (facts, error) {
	listed, err := s.topics.ListTopics(s.reader, &pb.ListTopicsRequest{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, topic := range listed.Topics {
		names = append(names, topic.Topic)
	}
	one := []*pb.AppendRecord{{Data: []byte("7")}}
	_, err = s.topics.Append(s.reader, &pb.AppendRequest{Topic: "events", Records: one})
	seen, err := refused(err)
	if err != nil {
		return nil, err
	}
	seen["reads"] = reflect.DeepEqual(names, []string{"events", "jobs"})
	return seen, nil
}

func (s *scenario) repeatable() (facts, error) {
	methods := pb.File_topics_v1_topics_service_proto.Services().ByName("TopicsService").Methods()
	seen := facts{}
	for _, name := range []protoreflect.Name{"PutTopic", "GetTopic", "Diff", "BulkDiff", "Append", "AppendStream"} {
		options := methods.ByName(name).Options().(*descriptorpb.MethodOptions)
		seen[string(name)] = options.GetIdempotencyLevel() != descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN
	}
	return seen, nil
}

// refused tells what the error of a call says.
func refused(err error) (facts, error) {
	if err == nil {
		return nil, errors.New("it was not refused")
	}
	told := status.Convert(err)
	seen := facts{"status": uint32(told.Code()), "retry_ms": nil}
	for _, detail := range told.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			seen["reason"], seen["domain"], seen["detail"] = detail.Reason, detail.Domain, detail.Metadata
			if detail.Metadata == nil {
				seen["detail"] = map[string]string{}
			}
		case *errdetails.RetryInfo:
			seen["retry_ms"] = detail.RetryDelay.AsDuration().Milliseconds()
		}
	}
	return seen, nil
}

func bearer(parent context.Context, key string) context.Context {
	return metadata.AppendToOutgoingContext(parent, "authorization", "Bearer "+key)
}

func seqs(records []*pb.Record) (found []uint64) {
	for _, record := range records {
		found = append(found, record.Seq)
	}
	return found
}

func data(records []*pb.Record) (found []string) {
	for _, record := range records {
		found = append(found, string(record.Data))
	}
	return found
}

// plain gives facts as they would be had they been read from a JSON file.
func plain(t *testing.T, seen facts) any {
	t.Helper()
	text, err := json.Marshal(seen)
	if err != nil {
		t.Fatal(err)
	}
	var same any
	if err := json.Unmarshal(text, &same); err != nil {
		t.Fatal(err)
	}
	return same
}

func env(t *testing.T, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s is not set: run it through pytest tests/sdk/languages/test_go.py", name)
	}
	return value
}
