// Package loop has what the loops of a node are made of: a signal that wakes one, a pause that the end of its context cuts short, and a log
// of what goes wrong that stays quiet while nothing new does.
package loop

import "github.com/rcfarm/rcfarm/pkg/wait"

// Signal is wait.Signal.
type Signal = wait.Signal

// What loops wait with.
var (
	NewSignal   = wait.NewSignal
	Pause       = wait.Pause
	PauseUnless = wait.PauseUnless
	NewPace     = wait.NewPace
)
