package field

import "time"

// ClockError bounds the difference between the clocks of two well administered machines.
const ClockError = 10 * time.Second

// NotAhead replaces a time that is ahead of now by more than ClockError with now, and reports whether it did. Else a
// wait that begins at a wrong clock's time would last too long.
func NotAhead(at *time.Time, now time.Time) bool {
	if !at.After(now.Add(ClockError)) {
		return false
	}
	*at = now
	return true
}

// NoneAhead replaces the pointer, because other records may share the time.
func NoneAhead(at **time.Time, now time.Time) bool {
	if *at == nil {
		return false
	}
	t := **at
	if !NotAhead(&t, now) {
		return false
	}
	*at = &t
	return true
}
