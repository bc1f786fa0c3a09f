// Command port is an example of a program that finds its address and port in a configuration file. Its script launch
// writes the file at each start. docs/running.md shows how to deploy it.
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	text, err := os.ReadFile(os.Args[1]) // such as: listen = 10.0.3.11:27331
	if err != nil {
		log.Fatal(err)
	}
	_, address, _ := strings.Cut(strings.TrimSpace(string(text)), "listen = ")
	hello := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }
	server := &http.Server{Addr: address, Handler: http.HandlerFunc(hello), ReadHeaderTimeout: 5 * time.Second}
	log.Fatal(server.ListenAndServe())
}
