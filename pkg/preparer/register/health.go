package register

import (
	"context"
	"errors"
	"time"

	"github.com/rcfarm/rcfarm/pkg/wait"
)

// maxOutput bounds how much of a health script's output is kept, in bytes: what Consul keeps of a check.
const maxOutput = 4096

// verdict is what the answers of a health script so far amount to.
type verdict struct {
	passing bool
	output  string // of the last run, after why it does not pass; at most maxOutput bytes
	ran     bool   // the last run was one: it ended by itself or took too long
}

// refusal is an answer of a health script that is not a pass. Any other error says that there was no answer.
type refusal string

func (r refusal) Error() string { return string(r) }

// judge asks a health script until ctx ends, and tells every verdict. interval is between the beginnings of two runs, which never overlap.
func judge(ctx context.Context, interval time.Duration, count counter, ask func(ctx context.Context) (output string, err error), tell func(verdict)) {
	wait.Each(ctx, nil, func() time.Duration {
		began := time.Now()
		output, err := ask(ctx)
		if ctx.Err() != nil {
			return 0 // it was cut short for no fault of its own
		}
		_, ran := errors.AsType[refusal](err)
		if err != nil {
			output = err.Error() + "\n" + output
		}
		tell(verdict{count.add(err == nil), output[:min(len(output), maxOutput)], ran || err == nil})
		return max(0, interval-time.Since(began))
	})
}

// counter turns answers into a verdict, as Consul does for the checks that it runs itself.
type counter struct {
	passing          bool
	success, failure int // how many equal answers in a row change the verdict; zero means one
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
