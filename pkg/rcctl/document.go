package rcctl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/document"
	"github.com/rcfarm/rcfarm/pkg/inspect"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// manifestAllowed is what a document with a manifest may be, in words.
const manifestAllowed = "one YAML or JSON document: a pod's manifest, or a replication controller with one as its pod"

func fileFlag() cli.Flag {
	return &cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "`FILE` with the document, YAML or JSON; - reads standard input"}
}

// readSpec reads, converts and validates the document that -f names. Its errors are *usageError and *inputError.
func readSpec(c *cli.Context, std *stdio) (*rc.Spec, error) {
	source, converted, err := readDocument(c, std, inspect.SpecAllowed)
	if err != nil {
		return nil, err
	}
	return decodeSpec(std, source, converted)
}

// decodeSpec decodes and validates a document, which may be what rcctl rc get has printed. Its errors are *inputError.
func decodeSpec(std *stdio, source string, converted []byte) (*rc.Spec, error) {
	spec, ignored, err := inspect.DecodeShown(converted)
	if err != nil {
		return nil, &inputError{source: source, err: err}
	}
	if len(ignored) > 0 {
		fmt.Fprintf(std.err, "rcctl: %s: ignored, as only rcfarm sets them: %s\n", source, strings.Join(ignored, ", "))
	}
	return spec, nil
}

// readManifest reads, converts and validates the manifest that -f names, alone or as the pod of a controller. Its errors
// are *usageError and *inputError.
func readManifest(c *cli.Context, std *stdio) (*manifest.Manifest, error) {
	source, converted, err := readDocument(c, std, manifestAllowed)
	if err != nil {
		return nil, err
	}
	var top struct {
		Pod      json.RawMessage `json:"pod"`
		Manifest json.RawMessage `json:"manifest"`
	}
	if json.Unmarshal(converted, &top) == nil && (top.Pod != nil || top.Manifest != nil) {
		spec, err := decodeSpec(std, source, converted)
		if err != nil {
			return nil, err
		}
		return spec.Pod, nil
	}
	m, err := manifest.Decode(converted)
	if err != nil {
		return nil, &inputError{source: source, err: err}
	}
	return m, nil
}

// readDocument returns the document that -f names as JSON, and the name of its file for errors.
func readDocument(c *cli.Context, std *stdio, allowed string) (source string, converted []byte, err error) {
	source, data, err := readFileFlag(c, std)
	if err != nil {
		return source, nil, err
	}
	converted, err = document.ToJSON(data, allowed)
	if err != nil {
		return source, nil, &inputError{source: source, err: err}
	}
	return source, converted, nil
}

// readFileFlag reads the file that -f names, of a command without arguments.
func readFileFlag(c *cli.Context, std *stdio) (source string, data []byte, err error) {
	name := c.String("file")
	if name == "" {
		return "", nil, badFlag(c, "--file", "", "the name of a file, or - for standard input")
	}
	if _, err := noArgs(c); err != nil {
		return "", nil, err
	}
	source, data, err = readFile(std, name)
	if err != nil {
		return source, nil, &inputError{source: source, err: err}
	}
	return source, data, nil
}

func readFile(std *stdio, name string) (source string, data []byte, err error) {
	from, source := std.in, "stdin"
	if name != "-" {
		source = name
		file, err := os.Open(name)
		if err != nil {
			return source, nil, unwrapPath(err)
		}
		defer file.Close()
		from = file
	}
	data, err = io.ReadAll(io.LimitReader(from, document.MaxBytes+1))
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
