package register

import (
	"context"
	"errors"
	"time"

	"github.com/rcfarm/rcfarm/pkg/wait"
)

// maxOutput is how much of a health script's output is kept, in bytes; Consul keeps as much of a check's output.
const maxOutput = 4096

type verdict struct {
	passing bool
	output  string // of the last run; if it did not pass, with the reason first; at most maxOutput bytes
	ran     bool   // the last run counts: the script ended by itself, or took too long
}

// refusal is the error of a health script that did not pass. Any other error means that the script did not run.
type refusal string

func (r refusal) Error() string { return string(r) }

// judge runs a health script until ctx ends. interval is the time between the starts of two runs, which never overlap.
func judge(ctx context.Context, interval time.Duration, count counter,
	ask func(ctx context.Context) (output string, err error), report func(verdict),
) {
	wait.Each(ctx, nil, func() time.Duration {
		began := time.Now()
		output, err := ask(ctx)
		if ctx.Err() != nil {
			return 0 // the end of ctx interrupted the script
		}
		_, ran := errors.AsType[refusal](err)
		if err != nil {
			output = err.Error() + "\n" + output
		}
		report(verdict{count.add(err == nil), output[:min(len(output), maxOutput)], ran || err == nil})
		return max(0, interval-time.Since(began))
	})
}

// counter turns results into a verdict by the rules that Consul has for its own checks.
type counter struct {
	passing          bool
	success, failure int // how many equal results in a row change the verdict; zero means one
	run              int // results in a row that differ from the verdict
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
