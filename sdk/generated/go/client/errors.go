package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	topicsv1 "topics.test/sdk/topics/v1"
)

// Reasons that are not of the server's registry.
const (
	// OutcomeUnknown is a write that may or may not be stored.
	OutcomeUnknown = "outcome_unknown"
	// LeaseLost is the cause of the end of a handler's context: others may have the job by now.
	LeaseLost = "lease_lost"
)

// Error says why a call failed. Branch on Reason, never on Message; docs/errors.md names every reason.
type Error struct {
	// Reason is the code of the registry ("topic_not_found"); where no server of ours answered, the gRPC status in lower
	// case ("unavailable", "deadline_exceeded"); OutcomeUnknown; LeaseLost.
	Reason string
	// Number is the reason's number in the protos; unspecified for reasons outside the registry.
	Number topicsv1.ErrorReason
	// Message is text for people.
	Message string
	// Detail holds the facts that the registry names.
	Detail map[string]string
	// RetryAfter is when to try again; zero where that makes no difference.
	RetryAfter time.Duration

	transient bool
	mayBeDone bool
	cause     error
}

func (e *Error) Error() string { return e.Reason + ": " + e.Message }

// Unwrap returns the error of gRPC, for status.Code, or of the context.
func (e *Error) Unwrap() error { return e.cause }

// Transient reports whether waiting may help: the server is absent, restarting or overloaded.
func (e *Error) Transient() bool { return e.transient }

// Reason is the reason of an error of this package; empty for any other, and for nil.
func Reason(err error) string {
	var known *Error
	if errors.As(err, &known) {
		return known.Reason
	}
	return ""
}

// Transient reports whether a retry after a while may succeed.
func Transient(err error) bool {
	var known *Error
	return errors.As(err, &known) && known.transient
}

// failure is the error of a failed call; for a context ended by the caller its own error.
func failure(ctx context.Context, err error) error {
	var known *Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	told := status.Convert(err)
	made := &Error{Reason: snake(told.Code()), Message: told.Message(), cause: err}
	answered := false
	for _, detail := range told.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			answered = true
			made.Reason, made.Detail = strings.ToLower(detail.Reason), detail.Metadata
			made.Number = topicsv1.ErrorReason(topicsv1.ErrorReason_value["ERROR_REASON_"+detail.Reason])
		case *errdetails.RetryInfo:
			made.transient = true
			made.RetryAfter = detail.RetryDelay.AsDuration()
		}
	}
	if answered {
		made.mayBeDone = made.Number == topicsv1.ErrorReason_ERROR_REASON_INTERNAL
		return made
	}
	switch told.Code() {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Internal, codes.Unknown, codes.Canceled, codes.DataLoss:
		made.transient = true
		made.mayBeDone = !strings.Contains(told.Message(), "connection refused")
	}
	return made
}

// snake is the name of a status as the errors of the other SDKs spell it.
func snake(code codes.Code) string {
	var name strings.Builder
	for i, letter := range code.String() {
		if i > 0 && letter >= 'A' && letter <= 'Z' {
			name.WriteByte('_')
		}
		name.WriteRune(letter)
	}
	return strings.ToLower(name.String())
}

func broken(format string, args ...any) *Error {
	return &Error{Reason: "unavailable", Message: fmt.Sprintf(format, args...), transient: true, mayBeDone: true}
}
