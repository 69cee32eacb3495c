package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// quiet is how long nothing comes when all has come. What was deleted from the end of a batch moves the client's
// position, but it tells nobody.
const quiet = 600 * time.Millisecond

// read reads partitions to their ends.
func read(ctx context.Context, facts *Facts) (any, error) {
	ends, err := asked(facts, func(admin *kadm.Client) (kadm.ListedOffsets, error) {
		return admin.ListEndOffsets(ctx, facts.Topic)
	})
	if err != nil {
		return nil, err
	}
	starts, err := asked(facts, func(admin *kadm.Client) (kadm.ListedOffsets, error) {
		return admin.ListStartOffsets(ctx, facts.Topic)
	})
	if err != nil {
		return nil, err
	}
	positions := map[int32]int64{}
	assigned := map[int32]kgo.Offset{}
	for partition, at := range facts.Start {
		var offset int64
		if err := json.Unmarshal(at, &offset); err != nil {
			start, _ := starts.Lookup(facts.Topic, partition)
			offset = start.Offset
		}
		positions[partition] = offset
		assigned[partition] = kgo.NewOffset().At(offset)
	}
	reset := kgo.NoResetOffset()
	switch facts.Reset {
	case "earliest":
		reset = kgo.NewOffset().AtStart()
	case "latest":
		reset = kgo.NewOffset().AtEnd()
	}
	client, err := newClient(
		facts,
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{facts.Topic: assigned}),
		kgo.ConsumeResetOffset(reset),
		kgo.KeepControlRecords(),
		kgo.FetchMaxWait(100*time.Millisecond),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	records := []Item{}
	deadline := time.Now().Add(time.Duration(facts.Seconds) * time.Second)
	last := time.Now()
	for !reached(positions, ends, facts.Topic) {
		if time.Since(last) > quiet && len(records) > 0 {
			for partition := range positions {
				end, _ := ends.Lookup(facts.Topic, partition)
				positions[partition] = end.Offset
			}
			break
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("no end after %d records: %v", len(records), positions)
		}
		soon, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		fetches := client.PollFetches(soon)
		cancel()
		for _, failed := range fetches.Errors() {
			if errors.Is(failed.Err, context.DeadlineExceeded) {
				continue
			}
			var lost *kgo.ErrDataLoss
			if errors.As(failed.Err, &lost) {
				continue
			}
			return nil, failed.Err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			positions[record.Partition] = record.Offset + 1
			last = time.Now()
			if !record.Attrs.IsControl() {
				records = append(records, item(record))
			}
		})
	}
	return map[string]any{"records": records, "ends": positions}, nil
}

func reached(positions map[int32]int64, ends kadm.ListedOffsets, topic string) bool {
	for partition, position := range positions {
		if end, _ := ends.Lookup(topic, partition); position != end.Offset {
			return false
		}
	}
	return true
}

func member(facts *Facts, more ...kgo.Opt) (*kgo.Client, error) {
	options := []kgo.Opt{
		kgo.ConsumerGroup(facts.Group),
		kgo.ConsumeTopics(facts.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.MetadataMaxAge(time.Second),
		kgo.HeartbeatInterval(500 * time.Millisecond),
		kgo.FetchMaxWait(100 * time.Millisecond),
	}
	switch facts.Protocol {
	case "range":
		options = append(options, kgo.Balancers(kgo.RangeBalancer()))
	case "cooperative":
		options = append(options, kgo.Balancers(kgo.CooperativeStickyBalancer()))
	case "consumer":
		options = append(options, kgo.Balancers(kgo.StickyBalancer()), kgo.ServerSideBalancer())
	}
	session := facts.SessionMs
	if session == 0 {
		session = 10000
	}
	options = append(options, kgo.SessionTimeout(time.Duration(session)*time.Millisecond))
	if facts.Instance != "" {
		options = append(options, kgo.InstanceID(facts.Instance))
	}
	return newClient(facts, append(options, more...)...)
}

func consume(ctx context.Context, facts *Facts) (any, error) {
	client, err := member(facts)
	if err != nil {
		return nil, err
	}
	defer client.CloseAllowingRebalance()
	records := []Item{}
	deadline := time.Now().Add(time.Duration(facts.Seconds) * time.Second)
	for len(records) < facts.Count {
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("only %d records", len(records))
		}
		client.AllowRebalance()
		soon, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		fetches := client.PollFetches(soon)
		cancel()
		for _, failed := range fetches.Errors() {
			if !errors.Is(failed.Err, context.DeadlineExceeded) {
				return nil, failed.Err
			}
		}
		fetches.EachRecord(func(record *kgo.Record) { records = append(records, item(record)) })
	}
	return records, client.CommitUncommittedOffsets(ctx)
}

type running struct {
	stop chan struct{}
	done chan struct{}
}

var members = map[string]running{}

// journal appends what a member saw, a JSON array a line.
type journal struct {
	lock sync.Mutex
	file *os.File
}

func (j *journal) write(event string, facts ...any) {
	j.lock.Lock()
	defer j.lock.Unlock()
	line, err := json.Marshal(append([]any{event, float64(time.Now().UnixMicro()) / 1e6}, facts...))
	if err != nil {
		panic(err)
	}
	if _, err := j.file.Write(append(line, '\n')); err != nil {
		panic(err)
	}
}

func memberStart(_ context.Context, facts *Facts) (any, error) {
	file, err := os.OpenFile(facts.Journal, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	log := &journal{file: file}
	told := func(event string) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			log.write(event, partitions[facts.Topic])
		}
	}
	client, err := member(
		facts,
		kgo.OnPartitionsAssigned(told("assigned")),
		kgo.OnPartitionsRevoked(told("revoked")),
		kgo.OnPartitionsLost(told("lost")),
	)
	if err != nil {
		return nil, err
	}
	one := running{make(chan struct{}), make(chan struct{})}
	members[facts.Member] = one
	go follow(client, log, one)
	return nil, nil
}

func memberStop(ctx context.Context, facts *Facts) (any, error) {
	one := members[facts.Member]
	delete(members, facts.Member)
	close(one.stop)
	select {
	case <-one.done:
		return nil, nil
	case <-ctx.Done():
		return nil, errors.New("the member does not leave")
	}
}

func follow(client *kgo.Client, log *journal, one running) {
	defer close(one.done)
	for {
		select {
		case <-one.stop:
			log.write("leaving")
			client.CloseAllowingRebalance()
			log.write("left")
			return
		default:
		}
		client.AllowRebalance()
		soon, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		fetches := client.PollRecords(soon, 50)
		cancel()
		records := fetches.Records()
		if len(records) == 0 {
			continue
		}
		places := [][]int64{}
		after := map[int32]int64{}
		for _, record := range records {
			places = append(places, []int64{int64(record.Partition), record.Offset})
			after[record.Partition] = record.Offset + 1
		}
		log.write("records", places)
		log.write("committing", after)
		patience, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		err := client.CommitRecords(patience, records...)
		cancel()
		if err != nil {
			log.write("refused", err.Error())
			continue
		}
		log.write("committed", after)
	}
}
