package client

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	topicsv1 "topics.test/sdk/topics/v1"
)

// Event is an item of a read or a watch: *Record, *Gap; of a watch also *CaughtUp, *TopicDeleted and *Advice.
type Event interface{ isEvent() }

// Record is a stored record.
type Record struct {
	Topic     string
	Partition uint32
	// Seq is the position in the log of the partition, from 1.
	Seq uint64
	// Time is that of the commit.
	Time time.Time
	// Data is the payload, byte for byte as written.
	Data []byte
	// Binary is true for bytes, false for one JSON text.
	Binary bool
	// Tag and Node are nil where the writer gave none.
	Tag, Node *string
	// Meta is the text of a JSON object; empty where the writer gave none.
	Meta json.RawMessage
}

// JSON decodes the payload into v.
func (r *Record) JSON(v any) error { return json.Unmarshal(r.Data, v) }

// Gap is a range of records that retention removed before they were read. Deletes leave none.
type Gap struct {
	Topic     string
	Partition uint32
	// First and Last are the lost range, both inclusive.
	First, Last uint64
	// Reason is "cap", "ttl", "mixed", "recreated", "source_trim" or "from_seq_too_old".
	Reason string
	// Earliest and Head are where the topic stands.
	Earliest, Head uint64
}

// CaughtUp says that one topic of a watch is drained: from here on records come as they are written.
type CaughtUp struct {
	Topic     string
	Partition uint32
	Head      uint64
}

// TopicDeleted reports that one topic of a watch was deleted; the others continue.
type TopicDeleted struct {
	Topic     string
	Partition uint32
	Head      uint64
}

// Advice is a message of the server about the watch itself, which continues: topics that are paced, or not followed.
type Advice struct {
	Reason, Message string
	Topics          []string
}

func (*Record) isEvent()       {}
func (*Gap) isEvent()          {}
func (*CaughtUp) isEvent()     {}
func (*TopicDeleted) isEvent() {}
func (*Advice) isEvent()       {}

// next is the cursor after the gap.
func (g *Gap) next() uint64 {
	if g.Reason != "recreated" {
		return g.Last
	}
	return max(g.Earliest, 1) - 1
}

func gapOf(topic string, partition uint32, lost *topicsv1.Tombstone) *Gap {
	return &Gap{
		Topic: topic, Partition: partition, First: lost.GapFrom, Last: lost.GapTo,
		Reason:   strings.ToLower(strings.TrimPrefix(lost.Reason.String(), "GAP_REASON_")),
		Earliest: lost.EarliestSeq, Head: lost.HeadSeq,
	}
}

// recordsOfRows are records that came one by one.
func recordsOfRows(topic string, partition uint32, rows []*topicsv1.Record) []Event {
	events := make([]Event, len(rows))
	for i, row := range rows {
		events[i] = &Record{
			Topic: topic, Partition: partition, Seq: row.Seq, Time: time.UnixMilli(row.TsMs), Data: row.Data,
			Binary: row.Kind == topicsv1.RecordKind_RECORD_KIND_BINARY, Tag: row.Tag, Node: row.Node, Meta: row.Meta,
		}
	}
	return events
}

// recordsOfColumns are records that came as columns.
func recordsOfColumns(topic string, partition uint32, columns *topicsv1.RecordColumns) ([]Event, error) {
	count := 0
	for _, length := range columns.RunCount {
		count += int(length)
	}
	records := make([]Record, count)
	data, tag, node, meta := packed(columns.Data), packed(columns.Tag), packed(columns.Node), packed(columns.Meta)
	for _, column := range []column{data, tag, node, meta} {
		if len(column.offsets) > 0 && len(column.offsets) != 4*(count+1) || len(columns.Kinds) > 0 && len(columns.Kinds) != count {
			return nil, fmt.Errorf("a column of %s does not fit its %d records", topic, count)
		}
	}
	at := 0
	for run, length := range columns.RunCount {
		for i := range uint64(length) {
			records[at].Seq = columns.RunFirstSeq[run] + i
			at++
		}
	}
	at = 0
	for run, length := range columns.TimeCount {
		for range length {
			if at < count {
				records[at].Time = time.UnixMilli(columns.TimeTsMs[run])
			}
			at++
		}
	}
	events := make([]Event, count)
	for i := range records {
		record := &records[i]
		record.Topic, record.Partition = topic, partition
		kind := columns.Kind
		if len(columns.Kinds) > 0 {
			kind = topicsv1.RecordKind(columns.Kinds[i])
		}
		record.Binary = kind == topicsv1.RecordKind_RECORD_KIND_BINARY
		record.Data, record.Meta = data.value(i), meta.value(i)
		record.Tag, record.Node = tag.text(i), node.text(i)
		events[i] = record
	}
	return events, nil
}

// column is one part of every record; without offsets all have the same value.
type column struct {
	data, offsets []byte
	absent        []uint32
	is            bool
}

func packed(from *topicsv1.PackedColumn) column {
	return column{data: from.GetData(), offsets: from.GetOffsets(), absent: from.GetAbsent(), is: from != nil}
}

func (c column) value(i int) []byte {
	if len(c.offsets) == 0 {
		return c.data
	}
	begin, end := binary.LittleEndian.Uint32(c.offsets[4*i:]), binary.LittleEndian.Uint32(c.offsets[4*i+4:])
	return c.data[begin:end:end]
}

func (c column) text(i int) *string {
	if !c.is {
		return nil
	}
	if _, absent := slices.BinarySearch(c.absent, uint32(i)); absent {
		return nil
	}
	text := string(c.value(i))
	return &text
}
