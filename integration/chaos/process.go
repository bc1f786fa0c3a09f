package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/rcfarm/rcfarm/pkg/consultest"
)

type process struct {
	name string
	on   *machine
	dir  string
	args []string // the program first

	mu    sync.Mutex
	cmd   *exec.Cmd
	ended chan struct{}
}

func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	log, err := os.OpenFile(filepath.Join(p.dir, p.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("ip", append([]string{"netns", "exec", p.on.name}, p.args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	ended := make(chan struct{})
	if err := consultest.StartTied(cmd, func(error) { close(ended) }); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	p.cmd, p.ended = cmd, ended
	return nil
}

func (p *process) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.cmd.Process.Signal(sig) // it may have ended
}

func (p *process) kill() { p.end(syscall.SIGKILL) }

func (p *process) end(sig syscall.Signal) {
	p.signal(sig)
	p.mu.Lock()
	ended := p.ended
	p.mu.Unlock()
	<-ended
}

func (p *process) alive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}
