package client

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	topicsv1 "topics.test/sdk/topics/v1"
)

func TestKeys(t *testing.T) {
	for _, each := range []struct {
		request proto.Message
		key     key
	}{
		{&topicsv1.AppendRequest{Topic: "t", Partition: 2}, key{"t", 2, ""}},
		{&topicsv1.GetTopicRequest{Topic: "t"}, key{"t", 0, ""}},
		{&topicsv1.GetGroupRequest{Group: "g"}, key{"", 0, "g"}},
		{&topicsv1.ConsumeRequest{Group: "g", Topic: "t", Partition: 1}, key{"t", 1, "g"}},
		{&topicsv1.SqlServiceConsumeRequest{Topic: "t", GroupId: "g"}, key{"t", 0, "g"}},
		{&topicsv1.ListTopicsRequest{Prefix: "t"}, everything},
		{&topicsv1.WatchRequest{}, everything},
		{&topicsv1.ExecuteRequest{Sql: "SELECT 1"}, sqlKey},
	} {
		if found := keyOf(each.request); found != each.key {
			t.Errorf("%T: %v, not %v", each.request, found, each.key)
		}
	}
}

func TestHintsAreBoundedAndThoseInUseAreKept(t *testing.T) {
	known, now := newHints(), time.Now()
	for i := range 3 * maxHints {
		known.learn(key{topic: fmt.Sprint(i)}, "a:1")
		if known.find(key{topic: "0"}, now) != "a:1" {
			t.Fatal("a hint in use was forgotten")
		}
		known.avoid(fmt.Sprint("b:", i), now.Add(time.Duration(i)))
	}
	if len(known.places) != maxHints || known.order.Len() != maxHints || len(known.avoided) != maxAvoided {
		t.Fatalf("%d, %d and %d are kept", len(known.places), known.order.Len(), len(known.avoided))
	}
	if known.find(key{topic: "1"}, now) != "" {
		t.Error("a hint of long ago is kept")
	}
	if last := fmt.Sprint("b:", 3*maxHints-1); !known.avoids(last, now) || known.avoids(last, now.Add(time.Hour)) {
		t.Error("a node is avoided for half a minute")
	}
}

func owned(t *testing.T) *routes {
	made, err := newRoutes([]string{"127.0.0.1:1"}, true, func(target string) (*grpc.ClientConn, error) {
		return grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := made.Close(); err != nil {
			t.Error(err)
		}
	})
	return made
}

func naming(owner string) metadata.MD { return metadata.Pairs(ownerKey, owner) }

func TestConnectionsToOwnersAreBounded(t *testing.T) {
	made := owned(t)
	var all []*link
	for i := range 100 {
		to, target := key{topic: fmt.Sprint(i)}, fmt.Sprint("127.0.0.1:", 10+i)
		made.answered(made.links["127.0.0.1:1"], to, nil, naming(target), nil)
		if found := made.owners[target]; found != nil {
			all = append(all, found)
			found.calls = i % 2 // those with a call under way stay
		}
		if len(made.owners) > maxOwners {
			t.Fatalf("%d connections", len(made.owners))
		}
	}
	for _, each := range all {
		if is := each.conn.GetState() == connectivity.Shutdown; is != (made.owners[each.target] == nil) || is && each.calls > 0 {
			t.Errorf("%s with %d calls is closed: %t", each.target, each.calls, is)
		}
	}
	if len(all) <= maxOwners {
		t.Error("none made room")
	}
}

func TestConnectionsThatAreNotUsedAreClosed(t *testing.T) {
	made, now := owned(t), time.Now()
	for _, name := range []string{"idle", "streamed", "used"} {
		made.answered(made.links["127.0.0.1:1"], key{topic: name}, nil, naming(fmt.Sprint("127.0.0.1:", len(name))), nil)
	}
	idle, streamed, used := made.owners["127.0.0.1:4"], made.owners["127.0.0.1:8"], made.owners["127.0.0.1:4"]
	if idle == nil || streamed == nil || used == nil {
		t.Fatal("not all are known")
	}
	streamed.calls++
	made.ownerOf(key{topic: "other"}, now.Add(idleTime+time.Minute))
	if idle.conn.GetState() != connectivity.Shutdown || streamed.conn.GetState() == connectivity.Shutdown {
		t.Error("the connections without a call are closed, no others")
	}
}

func TestWhatAnOwnerSaysThatIsNotAvailable(t *testing.T) {
	for reason, avoided := range map[string]bool{"": true, "SHUTTING_DOWN": true, "NOT_READY": false} {
		said := status.New(codes.Unavailable, "away")
		if reason != "" {
			said, _ = said.WithDetails(&errdetails.ErrorInfo{Reason: reason})
		}
		for _, ofAll := range []bool{false, true} {
			made, one, other := owned(t), key{topic: "one"}, key{topic: "other"}
			for _, to := range []key{one, other} {
				initial, trailing := metadata.MD(nil), naming("127.0.0.1:9")
				if ofAll {
					initial, trailing = trailing, nil
				}
				made.answered(made.links["127.0.0.1:1"], to, initial, trailing, nil)
			}
			made.answered(made.owners["127.0.0.1:9"], one, nil, nil, said.Err())
			if made.hints.find(one, time.Now()) != "" {
				t.Errorf("%q: the owner is still known", reason)
			}
			if is := made.hints.find(other, time.Now()) == ""; is != (avoided || ofAll) {
				t.Errorf("%q: another key's owner is left: %t", reason, is)
			}
			if is := made.owners["127.0.0.1:9"] == nil; is != avoided {
				t.Errorf("%q: the node is avoided: %t", reason, is)
			}
		}
	}
}

func TestWhatANameIsNot(t *testing.T) {
	made := owned(t)
	for _, named := range []string{"", "nonsense", ":1", "a:b", "a:70000", "127.0.0.1:1"} {
		made.answered(made.links["127.0.0.1:1"], key{topic: "t"}, nil, naming(named), nil)
		if used, end := made.begin(context.Background(), key{topic: "t"}); used != made.links["127.0.0.1:1"] {
			t.Errorf("%q is used", named)
		} else {
			end()
		}
	}
}

func TestNodesOfAnAddress(t *testing.T) {
	nodes, err := nodesIn("a:1, b:2,a:1")
	if err != nil || fmt.Sprint(nodes) != "[a:1 b:2]" {
		t.Error(nodes, err)
	}
	many := "h:0"
	for i := range maxNodes {
		many += fmt.Sprint(",h:", i+1)
	}
	for _, wrong := range []string{"", "a:1,", ",", many} {
		if _, err := New(wrong, Options{}); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
}
