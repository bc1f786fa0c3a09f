package rcctl

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// samples are documents for a development cluster. DIRECTORY stands for the directory of their artifact, SHA256 for its
// digest.
//
//go:embed samples/*.yaml
var samples embed.FS

// sampleArtifact is a small web server, packed by `make build` beside rcctl.
const sampleArtifact = "hello.tar.gz"

// writeSamples writes the artifact and the sample documents into dir, an absolute path. It keeps existing files,
// because the user may have changed them.
func writeSamples(dir, bin string) error {
	artifact, err := os.ReadFile(filepath.Join(bin, sampleArtifact))
	if err != nil {
		return fmt.Errorf("read the sample artifact: %w", err)
	}
	kept := filepath.Join(dir, sampleArtifact)
	if err := writeNew(kept, artifact); err != nil {
		return fmt.Errorf("write the sample artifact: %w", err)
	}
	if artifact, err = os.ReadFile(kept); err != nil { // documents that are there already name its digest
		return fmt.Errorf("read the sample artifact: %w", err)
	}
	digest, at := sha256.Sum256(artifact), url.URL{Scheme: "file", Path: filepath.ToSlash(dir)}
	fill := strings.NewReplacer("file://DIRECTORY", at.String(), "SHA256", hex.EncodeToString(digest[:]))
	documents, err := samples.ReadDir("samples")
	if err != nil {
		return err
	}
	for _, d := range documents {
		text, err := samples.ReadFile("samples/" + d.Name())
		if err != nil {
			return err
		}
		if err := writeNew(filepath.Join(dir, d.Name()), []byte(fill.Replace(string(text)))); err != nil {
			return fmt.Errorf("write a sample document: %w", err)
		}
	}
	return nil
}

func writeNew(name string, data []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(name) // the next call would keep the incomplete file
	}
	return err
}
