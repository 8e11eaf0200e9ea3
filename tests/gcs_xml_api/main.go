// A Google Cloud Storage server for tests: fake-gcs-server behind the object requests of the XML API.
//
// fake-gcs-server keeps the objects, numbers their generations and decides preconditions under a lock. It offers them
// in the JSON API. obstore and delta-rs write and list through the XML API, of which it has the reads only. This
// program translates those requests as Google's reference of the XML API describes them. All other requests go to
// fake-gcs-server unchanged.
package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"flag"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

type server struct {
	jsonAPI http.Handler
	host    string
	uploads *uploads
}

func main() {
	address := flag.String("address", "127.0.0.1:4443", "where to listen")
	bucket := flag.String("bucket", "bucket", "the bucket to make")
	flag.Parse()
	fake, err := fakestorage.NewServerWithOptions(fakestorage.Options{
		NoListener: true, PublicHost: *address, ExternalURL: "http://" + *address,
	})
	if err != nil {
		log.Fatal(err)
	}
	fake.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: *bucket})
	handler := &server{jsonAPI: fake.HTTPHandler(), host: *address, uploads: newUploads()}
	log.Fatal(http.ListenAndServe(*address, handler))
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	bucket, object, hasObject := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	isJSON := bucket == "storage" || bucket == "upload" || bucket == "download" || bucket == "batch"
	// a proxy forwards the host that the client asked, and fake-gcs-server looks at it
	r.Host = s.host
	query := r.URL.Query()
	switch {
	case isJSON:
		s.jsonAPI.ServeHTTP(w, r)
	case !hasObject || object == "":
		s.list(w, bucket, query)
	case r.Method == http.MethodPost && query.Has("uploads"):
		s.uploads.start(w, bucket, object, r.Header)
	case query.Has("uploadId"):
		s.continueUpload(w, r, bucket, object, query)
	case r.Method == http.MethodPut:
		s.put(w, bucket, object, r.Header, r.Body)
	default:
		s.jsonAPI.ServeHTTP(w, r)
	}
}

// call sends a request of the JSON API and returns the recorded answer.
func (s *server) call(method, path string, query url.Values, header http.Header, body io.Reader) *httptest.ResponseRecorder {
	request := httptest.NewRequest(method, "http://"+s.host+path+"?"+query.Encode(), body)
	request.Header = header
	recorder := httptest.NewRecorder()
	s.jsonAPI.ServeHTTP(recorder, request)
	return recorder
}

// put writes an object whole: https://cloud.google.com/storage/docs/xml-api/put-object-upload
func (s *server) put(w http.ResponseWriter, bucket, object string, header http.Header, body io.Reader) {
	query := url.Values{"uploadType": {"media"}, "name": {object}}
	if generation := header.Get("x-goog-if-generation-match"); generation != "" {
		query.Set("ifGenerationMatch", generation)
	}
	kept := http.Header{}
	for name, values := range header {
		if strings.HasPrefix(name, "X-Goog-Meta-") || strings.HasPrefix(name, "Content-Type") {
			kept[name] = values
		}
	}
	answer := s.call(http.MethodPost, "/upload/storage/v1/b/"+url.PathEscape(bucket)+"/o", query, kept, body)
	if answer.Code != http.StatusOK {
		refuse(w, answer.Code, answer.Body.String())
		return
	}
	var written struct{ Etag, Generation string }
	if err := json.Unmarshal(answer.Body.Bytes(), &written); err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("ETag", `"`+strings.Trim(written.Etag, `"`)+`"`)
	w.Header().Set("x-goog-generation", written.Generation)
}

type listedObject struct {
	Key, Generation, LastModified, ETag, Size string
}

type listedPrefix struct{ Prefix string }

type listing struct {
	XMLName               xml.Name `xml:"ListBucketResult"`
	Name, Prefix          string
	Contents              []listedObject
	CommonPrefixes        []listedPrefix
	NextContinuationToken string `xml:",omitempty"`
	IsTruncated           bool
}

// list names a page of objects: https://cloud.google.com/storage/docs/xml-api/get-bucket-list
func (s *server) list(w http.ResponseWriter, bucket string, asked url.Values) {
	query := url.Values{"maxResults": {"1000"}}
	names := map[string]string{
		"prefix": "prefix", "delimiter": "delimiter", "max-keys": "maxResults", "continuation-token": "pageToken",
	}
	for xmlName, jsonName := range names {
		if asked.Has(xmlName) {
			query.Set(jsonName, asked.Get(xmlName))
		}
	}
	if asked.Has("start-after") {
		// the JSON API starts at the offset, the XML API after it
		query.Set("startOffset", asked.Get("start-after")+"\x00")
	}
	answer := s.call(http.MethodGet, "/storage/v1/b/"+url.PathEscape(bucket)+"/o", query, http.Header{}, nil)
	var found struct {
		Items []struct {
			Name, Generation, Updated, Etag, Size string
		}
		Prefixes      []string
		NextPageToken string
	}
	if answer.Code != http.StatusOK {
		refuse(w, answer.Code, answer.Body.String())
		return
	}
	if err := json.Unmarshal(answer.Body.Bytes(), &found); err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	page := listing{
		Name: bucket, Prefix: asked.Get("prefix"),
		NextContinuationToken: found.NextPageToken, IsTruncated: found.NextPageToken != "",
	}
	for _, item := range found.Items {
		etag := `"` + strings.Trim(item.Etag, `"`) + `"`
		page.Contents = append(page.Contents, listedObject{item.Name, item.Generation, item.Updated, etag, item.Size})
	}
	for _, prefix := range found.Prefixes {
		page.CommonPrefixes = append(page.CommonPrefixes, listedPrefix{prefix})
	}
	answerXML(w, page)
}

func answerXML(w http.ResponseWriter, content any) {
	var text bytes.Buffer
	if err := xml.NewEncoder(&text).Encode(content); err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/xml")
	w.Write(text.Bytes())
}

type refusal struct {
	XMLName       xml.Name `xml:"Error"`
	Code, Message string
}

func refuse(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	xml.NewEncoder(w).Encode(refusal{Code: http.StatusText(status), Message: message})
}
