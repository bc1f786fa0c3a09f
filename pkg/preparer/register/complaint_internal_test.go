package register

import (
	"testing"
	"time"
)

// The complaint changes at once if the reason changes, and after a while if other words change. It does not change if
// only numbers change.
func TestComplaint(t *testing.T) {
	t.Parallel()
	const get = "HTTP GET http://127.0.0.1:80/: "
	for name, steps := range map[string][]struct {
		at   time.Duration
		said string
		new  bool
	}{
		"http": {
			{0, get + "503 Service Unavailable Output: db is down, took 12 ms", true},
			{1, get + "503 Service Unavailable Output: db is down, took 13.5 ms", false},
			{2, get + "500 Internal Server Error Output: db is down, took 14 ms", true},
			{3, get + "500 Internal Server Error Output: disk is full", false},
			{2 + time.Minute, get + "500 Internal Server Error Output: disk is full", true},
			{time.Hour, get + "500 Internal Server Error Output: disk is full", false},
			{2 * time.Hour, get + "500 Internal Server Error Output: disk is full request-3fa9", false},
		},
		"connection": {
			{0, "read tcp 127.0.0.1:40112->127.0.0.1:80: connection reset by peer", true},
			{time.Hour, "read tcp 127.0.0.1:51877->127.0.0.1:80: connection reset by peer", false},
			{time.Hour, "dial tcp 127.0.0.1:80: connect: connection refused", true},
		},
		"script": {
			{0, "the health script exit status 1\nlag=12ms at 12:00:01", true},
			{time.Hour, "the health script exit status 1\nlag=13ms at 13:00:01", false},
			{time.Hour, "the health script exit status 2\nlag=13ms at 13:00:02", true},
		},
		"nothing": {{0, "", false}, {0, "no", true}},
	} {
		began := time.Now()
		var c complaint
		want := ""
		for i, s := range steps {
			if s.new {
				want = s.said
			}
			if got := c.hear(s.said, began.Add(s.at)); got != s.new || c.text != want {
				t.Errorf("%s %d: changed %v, reported %q; want %v and %q", name, i, got, c.text, s.new, want)
			}
		}
	}
}
