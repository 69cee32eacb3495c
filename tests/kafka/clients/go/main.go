// The Go client program (franz-go): a JSON command a line on stdin, a JSON reply a line on stdout.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// Facts are the parameters of a command.
type Facts struct {
	Do         string                    `json:"do"`
	Conn       Conn                      `json:"conn"`
	Topic      string                    `json:"topic"`
	Partitions int32                     `json:"partitions"`
	Total      int                       `json:"total"`
	Configs    map[string]string         `json:"configs"`
	Partition  int32                     `json:"partition"`
	Offset     int64                     `json:"offset"`
	Offsets    map[int32]int64           `json:"offsets"`
	At         json.RawMessage           `json:"at"`
	Records    []Item                    `json:"records"`
	Acks       int                       `json:"acks"`
	Codec      string                    `json:"codec"`
	Idempotent bool                      `json:"idempotent"`
	Count      int                       `json:"count"`
	PauseMs    int64                     `json:"pause_ms"`
	Seconds    int64                     `json:"seconds"`
	Start      map[int32]json.RawMessage `json:"start"`
	Reset      string                    `json:"reset"`
	Group      string                    `json:"group"`
	Protocol   string                    `json:"protocol"`
	Instance   string                    `json:"instance"`
	SessionMs  int64                     `json:"session_ms"`
	ID         string                    `json:"id"`
	Member     string                    `json:"member"`
	Journal    string                    `json:"journal"`
}

// Conn is how to reach the server.
type Conn struct {
	Bootstrap string  `json:"bootstrap"`
	User      *string `json:"user"`
	Password  string  `json:"password"`
	CA        string  `json:"ca"`
}

// Item is a record as it travels: bytes in base64, null stays null.
type Item struct {
	Partition int32       `json:"partition"`
	Offset    int64       `json:"offset"`
	Timestamp *int64      `json:"timestamp"`
	Key       *string     `json:"key"`
	Value     *string     `json:"value"`
	Headers   [][]*string `json:"headers"`
}

type command func(context.Context, *Facts) (any, error)

func main() {
	commands := map[string]command{
		"create_topic":      createTopic,
		"describe_topic":    describeTopic,
		"create_partitions": createPartitions,
		"describe_configs":  describeConfigs,
		"alter_configs":     alterConfigs,
		"delete_records":    deleteRecords,
		"delete_topic":      deleteTopic,
		"offsets":           offsets,
		"committed":         committed,
		"commit":            commit,
		"groups":            groups,
		"describe_group":    describeGroup,
		"delete_group":      deleteGroup,
		"produce":           produce,
		"produce_many":      produceMany,
		"transaction":       transaction,
		"read":              read,
		"consume":           consume,
		"member_start":      memberStart,
		"member_stop":       memberStop,
	}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 256<<20)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		reply := map[string]any{}
		facts := Facts{Seconds: 30, Acks: -1}
		err := json.Unmarshal(in.Bytes(), &facts)
		var value any
		if err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(facts.Seconds+15)*time.Second)
			value, err = commands[facts.Do](ctx, &facts)
			cancel()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, facts.Do, err)
			reply["error"] = map[string]any{"code": refusal(err), "message": err.Error()}
		} else {
			reply["ok"] = value
		}
		if err := out.Encode(reply); err != nil {
			panic(err)
		}
	}
}

// refusal gives Kafka's error code of an error, nil if it has none.
func refusal(err error) any {
	var known *kerr.Error
	if errors.As(err, &known) {
		return known.Code
	}
	if strings.Contains(err.Error(), "SASL_AUTHENTICATION_FAILED") {
		return kerr.SaslAuthenticationFailed.Code
	}
	return nil
}
