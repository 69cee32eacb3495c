package main

import (
	"context"
	"encoding/json"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func acks(facts *Facts) kgo.Acks {
	switch facts.Acks {
	case 0:
		return kgo.NoAck()
	case 1:
		return kgo.LeaderAck()
	}
	return kgo.AllISRAcks()
}

func codec(facts *Facts) kgo.CompressionCodec {
	switch facts.Codec {
	case "gzip":
		return kgo.GzipCompression()
	case "snappy":
		return kgo.SnappyCompression()
	case "lz4":
		return kgo.Lz4Compression()
	case "zstd":
		return kgo.ZstdCompression()
	}
	return kgo.NoCompression()
}

func produce(ctx context.Context, facts *Facts) (any, error) {
	records := []*kgo.Record{}
	for _, one := range facts.Records {
		record := &kgo.Record{
			Topic: facts.Topic, Partition: one.Partition, Key: unpacked(one.Key), Value: unpacked(one.Value),
		}
		if one.Timestamp != nil {
			record.Timestamp = time.UnixMilli(*one.Timestamp)
		}
		for _, header := range one.Headers {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: *header[0], Value: unpacked(header[1])})
		}
		records = append(records, record)
	}
	return send(ctx, facts, records)
}

func produceMany(ctx context.Context, facts *Facts) (any, error) {
	records := []*kgo.Record{}
	for i := range facts.Count {
		value := []byte(strconv.Itoa(i))
		records = append(records, &kgo.Record{Topic: facts.Topic, Partition: int32(i) % facts.Partitions, Value: value})
	}
	return send(ctx, facts, records)
}

func send(ctx context.Context, facts *Facts, records []*kgo.Record) (any, error) {
	options := []kgo.Opt{
		kgo.RequiredAcks(acks(facts)),
		kgo.ProducerBatchCompression(codec(facts)),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(5 * time.Millisecond),
		kgo.ProduceRequestTimeout(5 * time.Second),
	}
	if !facts.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client, err := newClient(facts, options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var lock sync.Mutex
	var failure error
	for i, record := range records {
		client.Produce(ctx, record, func(_ *kgo.Record, err error) {
			lock.Lock()
			defer lock.Unlock()
			if err != nil && failure == nil {
				failure = err
			}
		})
		if facts.PauseMs > 0 && i%20 == 19 {
			time.Sleep(time.Duration(facts.PauseMs) * time.Millisecond)
		}
	}
	if err := client.Flush(ctx); err != nil {
		return nil, err
	}
	places := []json.RawMessage{}
	for _, record := range records {
		place, _ := json.Marshal([]int64{int64(record.Partition), record.Offset})
		if facts.Acks == 0 {
			place = json.RawMessage("null")
		}
		places = append(places, place)
	}
	return places, failure
}

func transaction(ctx context.Context, facts *Facts) (any, error) {
	client, err := newClient(facts, kgo.TransactionalID(facts.ID))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	_, _, err = client.ProducerID(ctx)
	return nil, err
}
