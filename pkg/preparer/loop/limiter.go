// Package loop has what a node's loops say of what goes wrong: a log that stays quiet while nothing new does. The
// parts of a node log through its LogLimiter, which is safe for concurrent use.
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

// repeatAfter is how long the same failure stays silent before it is logged again.
const repeatAfter = time.Minute

// LogLimiter logs what goes wrong once when it begins, once when it turns into something else, now and then while it lasts,
// and once when it is over, however often it is tried and however often it comes and goes.
type LogLimiter struct {
	log obs.Logger

	mu   sync.Mutex
	last map[string]lastLogged
}

type lastLogged struct {
	message string
	at      time.Time // when it was logged
	lasts   bool
	logged  bool // the failure that lasts was logged, so its end will be
}

// NewLogLimiter returns one that has logged nothing yet.
func NewLogLimiter(log obs.Logger) *LogLimiter {
	return &LogLimiter{log: log, last: map[string]lastLogged{}}
}

// Report records that one thing fails.
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

// Over records that the thing works.
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

// Saw records whether something works, and returns whether it does not.
func (l *LogLimiter) Saw(key, message string, err error) (failed bool) {
	if err == nil {
		l.Over(key)
	} else {
		l.Report(key, message, err)
	}
	return err != nil
}

// Failed is Saw, but for what fails because ctx has ended, which says nothing.
func (l *LogLimiter) Failed(ctx context.Context, key, message string, err error) bool {
	if err != nil && ctx.Err() != nil {
		return true
	}
	return l.Saw(key, message, err)
}

// denied says in words that an error is about the token's permissions, or nothing when it is not.
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
