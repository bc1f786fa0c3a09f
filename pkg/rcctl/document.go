package rcctl

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/urfave/cli/v2"
	"sigs.k8s.io/yaml"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// maxDocument bounds what is read of a file, in bytes.
const maxDocument = 1 << 20

const documentAllowed = "one YAML or JSON document that describes a replication controller"

func fileFlag() cli.Flag {
	return &cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "`FILE` with the document, YAML or JSON; - reads standard input"}
}

// readSpec reads, converts and validates the document that -f names. Its errors are *usageError and *inputError.
func (t *tool) readSpec(c *cli.Context) (*rc.Spec, error) {
	name := c.String("file")
	if name == "" {
		return nil, badFlag(c, "--file", "", "the name of a file, or - for standard input")
	}
	if c.Args().Present() {
		return nil, usagef(c, "unexpected argument %q; allowed: none", c.Args().First())
	}
	source, data, err := t.readFile(name)
	if err != nil {
		return nil, &inputError{source: source, err: err}
	}
	converted, err := toJSON(data)
	if err != nil {
		return nil, &inputError{source: source, err: err}
	}
	spec, err := rc.DecodeSpec(converted)
	if err != nil {
		return nil, &inputError{source: source, err: err}
	}
	return spec, nil
}

func (t *tool) readFile(name string) (source string, data []byte, err error) {
	from, source := t.in, "stdin"
	if name != "-" {
		source = name
		file, err := os.Open(name)
		if err != nil {
			return source, nil, unwrapPath(err)
		}
		defer file.Close()
		from = file
	}
	data, err = io.ReadAll(io.LimitReader(from, maxDocument+1))
	if err != nil {
		return source, nil, unwrapPath(err)
	}
	return source, data, nil
}

// unwrapPath drops the file name from an error whose reader prints it anyway.
func unwrapPath(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return fmt.Errorf("%s: %w", path.Op, path.Err)
	}
	return err
}

// toJSON turns one document of strict YAML, of which JSON is a part, into JSON. Its errors are field.Errors.
func toJSON(data []byte) ([]byte, error) {
	var errs field.Errors
	if len(data) > maxDocument {
		errs.Add("document", field.Text("a size of more than "+fmt.Sprint(maxDocument)+" bytes"), fmt.Sprintf("at most %d bytes", maxDocument))
		return nil, errs
	}
	docs := split(data)
	switch {
	case len(docs) == 0:
		errs.Missing("document", documentAllowed)
		return nil, errs
	case len(docs) > 1:
		errs.Add("document", field.Text(fmt.Sprintf("a file with %d documents", len(docs))), documentAllowed)
		return nil, errs
	}
	converted, err := yaml.YAMLToJSONStrict(docs[0])
	if err != nil {
		return nil, explain(err)
	}
	return converted, nil
}

// split returns the documents of a YAML stream that hold anything besides comments. Each keeps its line numbers by empty
// lines in front. (The YAML library reads the first document and does not say that there are more.)
func split(data []byte) [][]byte {
	var docs [][]byte
	line, start := 0, 0
	var doc []byte
	flush := func() {
		if holdsAnything(doc) {
			docs = append(docs, append(bytes.Repeat([]byte("\n"), start), doc...))
		}
	}
	for text := range bytes.Lines(data) {
		if marker, rest := cutMarker(text); marker {
			flush()
			doc, start, text = nil, line, rest
		}
		doc = append(doc, text...)
		line++
	}
	flush()
	return docs
}

// cutMarker recognises the lines "---" and "..." that start and end a document, and returns what follows on the line.
// Source: https://yaml.org/spec/1.1/#document%20boundary%20marker/
func cutMarker(line []byte) (marker bool, rest []byte) {
	if !bytes.HasPrefix(line, []byte("---")) && !bytes.HasPrefix(line, []byte("...")) {
		return false, nil
	}
	rest = line[3:]
	if len(rest) > 0 && !bytes.ContainsRune([]byte(" \t\r\n"), rune(rest[0])) {
		return false, nil
	}
	return true, rest
}

// holdsAnything reports whether text has a line that is neither empty, nor a comment, nor a YAML directive.
func holdsAnything(text []byte) bool {
	for line := range bytes.Lines(bytes.TrimPrefix(text, []byte("\ufeff"))) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return true
		}
	}
	return false
}

// explain turns the YAML library's words into field.Errors.
func explain(err error) error {
	var errs field.Errors
	repeated := regexp.MustCompile(`line (\d+): key "?(.*?)"? already set in map`)
	text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "), "yaml: ")
	for _, m := range repeated.FindAllStringSubmatch(text, -1) {
		errs.Add(m[2], field.Text("a second time (line "+m[1]+")"), "each key once")
	}
	if errs == nil {
		errs.Add("document", field.Text("this text"), fmt.Sprintf("YAML or JSON (%s)", strings.ReplaceAll(text, "\n", " ")))
	}
	return errs
}
