package nodeapi

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
)

// The kinds of frames in the response to a command. A frame is one byte, the length of the data as four bytes in
// network order, and the data.
const (
	frameAlive  byte = 0 // no data; a failed write shows the server that the client is gone
	frameStdout byte = 1
	frameStderr byte = 2
	frameEnd    byte = 3 // an Ended as JSON; the last frame
)

// maxFrame is in bytes.
const maxFrame = 64 << 10

// The exit codes of shells for a command that was not started.
const (
	NotStarted = 126 // the program exists, or may exist, and could not be executed
	NoProgram  = 127 // no file has the program's name
)

// Ended is how a command ended.
type Ended struct {
	// Code is the exit status; -1 if a signal ended the command; with an Error: NotStarted, NoProgram, or -1.
	Code   int    `json:"code"`
	Signal string `json:"signal,omitempty"` // such as SIGKILL
	Error  string `json:"error,omitempty"`  // why the command did not run, or did not run to its end
}

func failed(err error) Ended {
	ended := Ended{Code: -1, Error: err.Error()}
	switch {
	case errors.Is(err, runtime.ErrNoProgram):
		ended.Code = NoProgram
	case errors.Is(err, runtime.ErrNotStarted):
		ended.Code = NotStarted
	}
	return ended
}

// String says how the command ended.
func (e Ended) String() string {
	if e.Error != "" {
		return e.Error
	}
	return runtime.Exit{Code: e.Code, Signal: e.Signal}.String()
}

var errFrame = errors.New("the answer is not what this version understands")

// frames writes frames one at a time, and flushes after each write.
type frames struct {
	mu    sync.Mutex
	to    io.Writer
	flush func() error
}

func (f *frames) write(kind byte, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for first := true; first || len(data) > 0; first = false {
		part := data[:min(len(data), maxFrame)]
		data = data[len(part):]
		head := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(part)))
		if _, err := f.to.Write(append(head, part...)); err != nil {
			return err
		}
	}
	return f.flush()
}

// stream writes one kind of frames. A failed write ends the command by cancel.
type stream struct {
	*frames
	kind   byte
	cancel func()
}

func (s stream) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := s.write(s.kind, p); err != nil {
		s.cancel()
		return 0, err
	}
	return len(p), nil
}

func (f *frames) end(e Ended) error {
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return f.write(frameEnd, data)
}

func readFrames(from io.Reader, stdout, stderr io.Writer) (Ended, error) {
	var head [5]byte
	for {
		if _, err := io.ReadFull(from, head[:]); err != nil {
			return Ended{}, fmt.Errorf("the connection to the preparer was lost before the command ended: %w", err)
		}
		size := binary.BigEndian.Uint32(head[1:])
		if size > maxFrame {
			return Ended{}, errFrame
		}
		data := make([]byte, size)
		if _, err := io.ReadFull(from, data); err != nil {
			return Ended{}, fmt.Errorf("the connection to the preparer was lost before the command ended: %w", err)
		}
		var err error
		switch head[0] {
		case frameAlive:
		case frameStdout:
			_, err = stdout.Write(data)
		case frameStderr:
			_, err = stderr.Write(data)
		case frameEnd:
			var e Ended
			if json.Unmarshal(data, &e) != nil {
				return Ended{}, errFrame
			}
			return e, nil
		default:
			return Ended{}, errFrame
		}
		if err != nil {
			return Ended{}, err
		}
	}
}
