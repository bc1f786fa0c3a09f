package consul

import (
	"testing"
	"time"
)

// After the machine slept for long, Left shows that the session is lost, although no timer has fired. An answer of the
// servers confirms it again.
func TestLeftAfterTheMachineSlept(t *testing.T) {
	t.Parallel()
	s := Session{lossAfter: time.Minute}
	s.Confirm(time.Now())
	if left := s.Left(); left <= 30*time.Second || left > time.Minute {
		t.Errorf("%s left of %s", left, s.lossAfter)
	}
	s.asleep -= time.Hour // the machine has slept for an hour since
	if left := s.Left(); left > -50*time.Minute {
		t.Errorf("%s left after an hour", left)
	}
	s.Confirm(time.Now())
	if left := s.Left(); left <= 30*time.Second {
		t.Errorf("%s left of %s once the servers have answered", left, s.lossAfter)
	}
}
