package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
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
			// The client joins the group again by itself where the coordinator has died.
			var session *kgo.ErrGroupSession
			isLost := errors.As(failed.Err, &session) && !errors.As(session.Err, new(*kerr.Error))
			if !errors.Is(failed.Err, context.DeadlineExceeded) && !isLost {
				return nil, failed.Err
			}
		}
		fetches.EachRecord(func(record *kgo.Record) { records = append(records, item(record)) })
	}
	if facts.Offset == 0 {
		return records, client.CommitUncommittedOffsets(ctx)
	}
	last := []*kgo.Record{}
	for partition := range client.UncommittedOffsets()[facts.Topic] {
		last = append(last, &kgo.Record{Topic: facts.Topic, Partition: partition, Offset: facts.Offset - 1, LeaderEpoch: -1})
	}
	return records, client.CommitRecords(ctx, last...)
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

// uncommitted is the last record of each partition that a member has processed and not committed. A rebalance refuses
// commits: what was refused is repeated with the next one, while the member owns the partition, and before it leaves.
type uncommitted struct {
	lock sync.Mutex
	last map[int32]*kgo.Record
	log  *journal
}

const lastTries = 100

func (u *uncommitted) processed(records []*kgo.Record) {
	u.lock.Lock()
	defer u.lock.Unlock()
	for _, record := range records {
		u.last[record.Partition] = record
	}
}

func (u *uncommitted) isEmpty() bool {
	u.lock.Lock()
	defer u.lock.Unlock()
	return len(u.last) == 0
}

// commit commits what these partitions have, or all with nil.
func (u *uncommitted) commit(client *kgo.Client, partitions []int32) {
	u.lock.Lock()
	defer u.lock.Unlock()
	records := []*kgo.Record{}
	after := map[int32]int64{}
	for partition, record := range u.last {
		if partitions == nil || slices.Contains(partitions, partition) {
			records = append(records, record)
			after[partition] = record.Offset + 1
		}
	}
	if len(records) == 0 {
		return
	}
	u.log.write("committing", after)
	patience, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	if err := client.CommitRecords(patience, records...); err != nil {
		u.log.write("refused", err.Error())
		return
	}
	u.log.write("committed", after)
	for partition := range after {
		delete(u.last, partition)
	}
}

// gone says that these are no longer the member's.
func (u *uncommitted) gone(event string, partitions []int32) {
	u.lock.Lock()
	defer u.lock.Unlock()
	for _, partition := range partitions {
		delete(u.last, partition)
	}
	u.log.write(event, partitions)
}

func memberStart(_ context.Context, facts *Facts) (any, error) {
	file, err := os.OpenFile(facts.Journal, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	log := &journal{file: file}
	rest := &uncommitted{last: map[int32]*kgo.Record{}, log: log}
	client, err := member(
		facts,
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			log.write("assigned", partitions[facts.Topic])
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, client *kgo.Client, partitions map[string][]int32) {
			if revoked := partitions[facts.Topic]; revoked != nil {
				rest.commit(client, revoked)
			}
			rest.gone("revoked", partitions[facts.Topic])
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			rest.gone("lost", partitions[facts.Topic])
		}),
	)
	if err != nil {
		return nil, err
	}
	one := running{make(chan struct{}), make(chan struct{})}
	members[facts.Member] = one
	go follow(client, rest, one)
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

func follow(client *kgo.Client, rest *uncommitted, one running) {
	defer close(one.done)
	tries := 0
	for {
		select {
		case <-one.stop:
			if rest.isEmpty() || tries == lastTries {
				rest.log.write("leaving")
				client.CloseAllowingRebalance()
				rest.log.write("left")
				return
			}
			tries++
		default:
		}
		client.AllowRebalance()
		soon, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		fetches := client.PollRecords(soon, 50)
		cancel()
		if records := fetches.Records(); len(records) > 0 {
			places := [][]int64{}
			for _, record := range records {
				places = append(places, []int64{int64(record.Partition), record.Offset})
			}
			rest.log.write("records", places)
			rest.processed(records)
		}
		rest.commit(client, nil)
	}
}
