// Command rcctl is the operators' tool. All its code is in package rcctl.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/rcfarm/rcfarm/pkg/app"
	"github.com/rcfarm/rcfarm/pkg/rcctl"
)

func main() {
	app.CrashBySignal()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the process at once
	os.Exit(rcctl.Main(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr))
}
