package rcctl

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/inspect"
)

// The help of rcctl rc status names every state that there is.
func TestStatesAreInTheHelp(t *testing.T) {
	help := statusCommand().Description
	states := append([]string{inspect.Deleting, inspect.Disabled, inspect.Pending, inspect.Progressing},
		inspect.Goals...)
	for _, state := range states {
		if state != inspect.Gone && !strings.Contains(help, state) {
			t.Errorf("rcctl rc status --help does not name %s", state)
		}
	}
}

// Colours do not move columns, and the text of cells cannot control a terminal.
func TestTable(t *testing.T) {
	tb := table{header: []string{"NAME", "STATE", "TEXT"}, paint: 1, colourOf: rcColour, rows: [][]string{
		{"a", "Converged", "x\x1b[31m\ny"}, {"longer", "Blocked", ""},
	}}
	var plain, shiny bytes.Buffer
	if err := tb.write(&plain, false); err != nil {
		t.Fatal(err)
	}
	if err := tb.write(&shiny, true); err != nil {
		t.Fatal(err)
	}
	want := "NAME    STATE      TEXT\na       Converged  x [31m y\nlonger  Blocked    -\n"
	if plain.String() != want {
		t.Errorf("got\n%swant\n%s", plain.String(), want)
	}
	bare := strings.NewReplacer(string(plainColour), "", string(green), "", string(red), "").Replace(shiny.String())
	if bare != want {
		t.Errorf("with colours:\n%s", bare)
	}
	if !strings.Contains(shiny.String(), string(green)+"Converged"+string(plainColour)) ||
		!strings.Contains(shiny.String(), string(red)+"Blocked") {
		t.Errorf("%q", shiny.String())
	}
}

func TestColoured(t *testing.T) {
	if coloured(&bytes.Buffer{}) {
		t.Error("a buffer is no terminal")
	}
	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if coloured(file) {
		t.Error("a file is no terminal")
	}
	device, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	if !coloured(device) {
		t.Error("a terminal has colours")
	}
	t.Setenv("NO_COLOR", "1")
	if coloured(device) {
		t.Error("NO_COLOR is set")
	}
}
