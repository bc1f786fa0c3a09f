// Package health asks a pod's health script again and again and counts what it says.
package health

import (
	"context"
	"time"
)

// MaxOutput bounds how much of a script's output is kept, in bytes: what Consul keeps of a check.
const MaxOutput = 4096

// Check is how often to ask, and what the answers mean.
type Check struct {
	// Ask runs the script once, in no more than its timeout, and returns what it said and why it does not pass.
	Ask      func(ctx context.Context) (output string, err error)
	Interval time.Duration // between the beginnings of two runs; they never overlap
	// SuccessThreshold and FailureThreshold are how many equal answers in a row change the verdict; zero means one.
	SuccessThreshold, FailureThreshold int
}

// Verdict is what the answers so far amount to.
type Verdict struct {
	Passing bool
	Output  string // of the last run, after why it does not pass; at most MaxOutput bytes
}

// Watch asks again and again until ctx ends, and tells every verdict. passing is what is known to begin with.
func Watch(ctx context.Context, c Check, passing bool, tell func(Verdict)) {
	count := counter{passing: passing, success: c.SuccessThreshold, failure: c.FailureThreshold}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		output, err := c.Ask(ctx)
		if ctx.Err() != nil {
			return // it was cut short for no fault of its own
		}
		if err != nil {
			output = err.Error() + "\n" + output
		}
		tell(Verdict{Passing: count.add(err == nil), Output: output[:min(len(output), MaxOutput)]})
		timer.Reset(max(0, c.Interval-time.Since(began)))
	}
}

// counter turns answers into a verdict, as Consul does for the checks that it runs itself.
type counter struct {
	passing          bool
	success, failure int // thresholds
	run              int // answers in a row that contradict the verdict
}

func (c *counter) add(pass bool) (passing bool) {
	if pass == c.passing {
		c.run = 0
		return c.passing
	}
	threshold := c.failure
	if pass {
		threshold = c.success
	}
	if c.run++; c.run >= threshold {
		c.passing, c.run = pass, 0
	}
	return c.passing
}
