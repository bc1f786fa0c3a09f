// Package loop limits how often a node logs failures of its loops.
package loop

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/store"
)

const repeatAfter = time.Minute

// LogLimiter logs a failure when it begins, when its message changes, every repeatAfter while it lasts, and when it is
// over. The number of log lines does not depend on how often a loop tries. It is safe for concurrent use.
type LogLimiter struct {
	log obs.Logger

	mu   sync.Mutex
	last map[string]lastLogged
}

type lastLogged struct {
	message string
	at      time.Time // when it was logged
	lasts   bool
	logged  bool // the present failure was logged, so its end is logged too
}

// NewLogLimiter returns a LogLimiter that has logged nothing yet.
func NewLogLimiter(log obs.Logger) *LogLimiter {
	return &LogLimiter{log: log, last: map[string]lastLogged{}}
}

// Report records that the thing named by key fails.
func (l *LogLimiter) Report(key, message string, err error) {
	fields := obs.Fields{obs.Error: err, obs.Key: key}
	if reason := denied(err); reason != "" {
		fields[obs.Reason] = reason
		message += ": " + reason
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.last[key]
	if last.message == message && time.Since(last.at) < repeatAfter {
		last.lasts = true
		l.last[key] = last
		return
	}
	l.last[key] = lastLogged{message: message, at: time.Now(), lasts: true, logged: true}
	l.log.WithFields(fields).Warn(message)
}

// Over records that the thing named by key works.
func (l *LogLimiter) Over(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.last[key]
	if !last.lasts {
		return
	}
	if last.logged {
		l.log.WithField(obs.Key, key).Info("works again")
	}
	last.lasts, last.logged = false, false
	l.last[key] = last
}

// Saw calls Over if err is nil, and Report otherwise.
func (l *LogLimiter) Saw(key, message string, err error) (failed bool) {
	if err == nil {
		l.Over(key)
	} else {
		l.Report(key, message, err)
	}
	return err != nil
}

// Failed is Saw, but it does not record a failure after ctx has ended.
func (l *LogLimiter) Failed(ctx context.Context, key, message string, err error) bool {
	if err != nil && ctx.Err() != nil {
		return true
	}
	return l.Saw(key, message, err)
}

// denied returns text about an error of the token's permissions, or "" for another error.
func denied(err error) string {
	switch {
	case errors.Is(err, store.ErrFiltered):
		return "the ACL token lacks a read permission"
	case strings.Contains(err.Error(), "Permission denied"):
		return "the ACL token lacks a permission"
	case strings.Contains(err.Error(), "ACL not found"):
		return "Consul does not know the ACL token"
	default:
		return ""
	}
}
