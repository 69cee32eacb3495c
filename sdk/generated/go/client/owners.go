package client

import (
	"container/list"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	topicsv1 "topics.test/sdk/topics/v1"
)

const (
	ownerKey   = "x-topics-owner" // initial metadata: the owner of everything; trailing: that of the key of the call
	maxHints   = 10_000
	maxAvoided = 64
	avoidTime  = 30 * time.Second
)

// key is the topic, partition and group of a call, as far as it names them. Calls with the same key have the same owner.
type key struct {
	topic     string
	partition int64
	group     string
}

var (
	everything key                  // of calls that may concern several nodes
	sqlKey     = key{partition: -1} // all tables are in one place
)

// names are the fields of a request that make its key; nil for those that there are not.
type names struct{ topic, partition, group protoreflect.FieldDescriptor }

var namesOf sync.Map // of protoreflect.MessageDescriptor

// keyOf is the key of a call.
func keyOf(request any) key {
	if _, is := request.(*topicsv1.ExecuteRequest); is {
		return sqlKey
	}
	message, is := request.(proto.Message)
	if !is {
		return everything
	}
	reflected := message.ProtoReflect()
	kind := reflected.Descriptor()
	found, known := namesOf.Load(kind)
	if !known {
		found = namesIn(kind)
		namesOf.Store(kind, found)
	}
	var made key
	fields := found.(names)
	if fields.topic != nil {
		made.topic = reflected.Get(fields.topic).String()
	}
	if fields.partition != nil {
		made.partition = int64(reflected.Get(fields.partition).Uint())
	}
	if fields.group != nil {
		made.group = reflected.Get(fields.group).String()
	}
	return made
}

func namesIn(kind protoreflect.MessageDescriptor) names {
	field := func(name protoreflect.Name, of protoreflect.Kind) protoreflect.FieldDescriptor {
		if found := kind.Fields().ByName(name); found != nil && found.Kind() == of && !found.IsList() {
			return found
		}
		return nil
	}
	found := names{topic: field("topic", protoreflect.StringKind), group: field("group", protoreflect.StringKind)}
	if found.group == nil {
		found.group = field("group_id", protoreflect.StringKind)
	}
	if found.topic != nil {
		found.partition = field("partition", protoreflect.Uint32Kind)
	}
	return found
}

// ownerIn is the owner that metadata names; empty if there is none.
func ownerIn(from metadata.MD) string {
	if named := from.Get(ownerKey); len(named) > 0 {
		return named[0]
	}
	return ""
}

// hints are the owners of the keys used last, and the nodes that are not to be used for a while. Not safe for
// concurrent use.
type hints struct {
	order   *list.List // of hint, the last used one in front
	places  map[key]*list.Element
	avoided map[string]time.Time
}

type hint struct {
	key    key
	target string
}

func newHints() *hints {
	return &hints{order: list.New(), places: map[key]*list.Element{}, avoided: map[string]time.Time{}}
}

// find is the owner to use for a key; empty if it is unknown or to be avoided.
func (h *hints) find(of key, now time.Time) string {
	place := h.places[of]
	if place != nil {
		h.order.MoveToFront(place)
	} else if place = h.places[everything]; place == nil {
		return ""
	}
	target := place.Value.(hint).target
	if h.avoids(target, now) {
		return ""
	}
	return target
}

func (h *hints) learn(of key, target string) {
	if place := h.places[of]; place != nil {
		place.Value = hint{of, target}
		h.order.MoveToFront(place)
		return
	}
	h.places[of] = h.order.PushFront(hint{of, target})
	if h.order.Len() > maxHints {
		delete(h.places, h.order.Remove(h.order.Back()).(hint).key)
	}
}

// forget forgets the owner of a key, and of everything if it is this one.
func (h *hints) forget(of key, target string) {
	for _, each := range []key{of, everything} {
		if place := h.places[each]; place != nil && (each == of || place.Value.(hint).target == target) {
			h.order.Remove(place)
			delete(h.places, each)
		}
	}
}

// avoids reports whether a node is not to be used now.
func (h *hints) avoids(target string, now time.Time) bool {
	until, is := h.avoided[target]
	if is && !now.Before(until) {
		delete(h.avoided, target)
		return false
	}
	return is
}

// avoid leaves a node alone for half a minute.
func (h *hints) avoid(target string, now time.Time) {
	h.avoided[target] = now.Add(avoidTime)
	if len(h.avoided) > maxAvoided {
		first := target
		for each, until := range h.avoided {
			if until.Before(h.avoided[first]) {
				first = each
			}
		}
		delete(h.avoided, first)
	}
}
