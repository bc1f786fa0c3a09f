// Package obs has the logger, the metrics registry, and the debug server.
package obs

import (
	"io"

	"github.com/sirupsen/logrus"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// Logger writes a constant message in lower case, and fields.
type Logger = logrus.FieldLogger

// Fields are the parts of a log line that vary.
type Fields = logrus.Fields

// The names of log fields.
const (
	RCID        = "rc_id"
	RCName      = "rc_name"
	Service     = "service"
	Pod         = "pod"
	Node        = "node"
	FarmID      = "farm_id"
	SessionID   = "session_id"
	Incarnation = "incarnation"
	ConsulIndex = "consul_index"
	Action      = "action"
	Desired     = "desired"
	Current     = "current"
	Attempt     = "attempt"
	Took        = "took"
	Error       = "error"
	Key         = "key"
	Reason      = "reason"
	Process     = "process"
	PID         = "pid"
	Address     = "address"
	Incident    = "incident"
	Stack       = "stack"
	Condition   = "condition"
)

// Debugs tells whether expensive fields of debug lines are needed.
func Debugs(l Logger) bool {
	switch l := l.(type) {
	case *logrus.Logger:
		return l.IsLevelEnabled(logrus.DebugLevel)
	case *logrus.Entry:
		return l.Logger.IsLevelEnabled(logrus.DebugLevel)
	default:
		return true
	}
}

// Discard returns a logger that writes nothing.
func Discard() Logger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	l.SetLevel(logrus.PanicLevel)
	return l
}

// NewLogger takes a logrus level name, and the format "text" or "json".
func NewLogger(w io.Writer, level, format string) (Logger, error) {
	l := logrus.New()
	l.SetOutput(w)
	parsed, err := logrus.ParseLevel(level)
	if err != nil {
		return nil, &field.Error{Field: "log-level", Value: level, Allowed: "debug, info, warning or error"}
	}
	l.SetLevel(parsed)
	switch format {
	case "text":
		l.SetFormatter(&logrus.TextFormatter{
			DisableColors: true, FullTimestamp: true,
			TimestampFormat: "2006-01-02T15:04:05.000Z07:00",
		})
	case "json":
		l.SetFormatter(&logrus.JSONFormatter{TimestampFormat: "2006-01-02T15:04:05.000Z07:00"})
	default:
		return nil, &field.Error{Field: "log-format", Value: format, Allowed: "text or json"}
	}
	return l, nil
}
