package register

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consultest"
)

func TestMain(m *testing.M) { os.Exit(consultest.NoLeaks(m.Run())) }

// judge runs the script once in each interval and reports the result. A run longer than the interval is followed at
// once by the next, and one that ctx interrupts is not reported.
func TestJudge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began, asked := time.Now(), 0
		takes := []time.Duration{0, time.Second, 15 * time.Second, 0, time.Hour}
		ask := func(ctx context.Context) (string, error) {
			asked++
			select {
			case <-time.After(takes[asked-1]):
			case <-ctx.Done():
				return "", ctx.Err()
			}
			if asked == 2 {
				return strings.Repeat("x", 2*maxOutput), errors.New("ill")
			}
			return "well", nil
		}
		type report struct {
			at time.Duration
			v  verdict
		}
		var got []report
		judge(ctx, 10*time.Second, counter{}, ask, func(v verdict) { got = append(got, report{time.Since(began), v}) })
		want := []report{
			{0, verdict{true, "well", true}},
			{11 * time.Second, verdict{false, ("ill\n" + strings.Repeat("x", maxOutput))[:maxOutput], false}},
			{35 * time.Second, verdict{true, "well", true}},
			{35 * time.Second, verdict{true, "well", true}},
		}
		if len(got) != len(want) {
			t.Fatalf("reported %v, want %v", got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%d: reported %.80v, want %.80v", i, got[i], want[i])
			}
		}
	})
}

func TestThresholds(t *testing.T) {
	for _, tt := range []struct {
		success, failure int
		answers, want    string // p and f; the first state is failing
	}{
		{0, 0, "fpfp", "fpfp"},
		{1, 1, "fpfp", "fpfp"},
		{2, 1, "pfppf", "fffpf"},
		{1, 3, "pffpfffp", "pppppp" + "fp"},
		{2, 2, "ppfpffpp", "fppppffp"},
	} {
		c := counter{success: tt.success, failure: tt.failure}
		var got strings.Builder
		for _, answer := range tt.answers {
			if c.add(answer == 'p') {
				got.WriteByte('p')
			} else {
				got.WriteByte('f')
			}
		}
		if got.String() != tt.want {
			t.Errorf("thresholds %d and %d: %s became %s, want %s", tt.success, tt.failure, tt.answers,
				got.String(), tt.want)
		}
	}
}
