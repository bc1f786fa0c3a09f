package proc

import (
	"testing"
	"time"
)

func TestMomentsOfOneBoot(t *testing.T) {
	a := Moment{Boot: "a", Up: time.Second}
	for _, tt := range []struct {
		earlier, later Moment
		want           time.Duration
	}{
		{a, Moment{Boot: "a", Up: 3 * time.Second}, 2 * time.Second},
		{a, Moment{Boot: "b", Up: 3 * time.Second}, Never},
		{a, Moment{Boot: "a"}, 0},
		{Moment{}, a, Never},
	} {
		if got := tt.later.Since(tt.earlier); got != tt.want {
			t.Errorf("from %v to %v: %s, want %s", tt.earlier, tt.later, got, tt.want)
		}
	}
}
