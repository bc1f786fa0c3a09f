package consul

import (
	"testing"
	"time"
)

// A machine that slept has its session no longer, though no timer knows; the servers' next answer tells.
func TestLeftAfterTheMachineSlept(t *testing.T) {
	t.Parallel()
	s := Session{lossAfter: time.Minute}
	s.Confirm(time.Now())
	if left := s.Left(); left <= 30*time.Second || left > time.Minute {
		t.Errorf("%s left of %s", left, s.lossAfter)
	}
	s.asleep -= time.Hour // it has slept since
	if left := s.Left(); left > -50*time.Minute {
		t.Errorf("%s left after an hour", left)
	}
	s.Confirm(time.Now())
	if left := s.Left(); left <= 30*time.Second {
		t.Errorf("%s left of %s once the servers have answered", left, s.lossAfter)
	}
}
