package main

import (
	"bytes"
	"crypto/rand"
	"encoding/xml"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
)

// uploads keeps the parts of uploads that are not complete:
// https://cloud.google.com/storage/docs/multipart-uploads
type uploads struct {
	mutex sync.Mutex
	byID  map[string]*upload
}

type upload struct {
	header http.Header
	parts  map[int][]byte
}

func newUploads() *uploads {
	return &uploads{byID: map[string]*upload{}}
}

func (u *uploads) start(w http.ResponseWriter, bucket, object string, header http.Header) {
	id := rand.Text()
	u.mutex.Lock()
	u.byID[id] = &upload{header: header.Clone(), parts: map[int][]byte{}}
	u.mutex.Unlock()
	answerXML(w, struct {
		XMLName               xml.Name `xml:"InitiateMultipartUploadResult"`
		Bucket, Key, UploadId string
	}{Bucket: bucket, Key: object, UploadId: id})
}

// continueUpload adds a part to an upload, completes it, or gives it up.
func (s *server) continueUpload(w http.ResponseWriter, r *http.Request, bucket, object string, query url.Values) {
	id := query.Get("uploadId")
	body, err := io.ReadAll(r.Body)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	s.uploads.mutex.Lock()
	defer s.uploads.mutex.Unlock()
	found := s.uploads.byID[id]
	if found == nil {
		refuse(w, http.StatusNotFound, "no such upload")
		return
	}
	switch r.Method {
	case http.MethodPut:
		number, err := strconv.Atoi(query.Get("partNumber"))
		if err != nil {
			refuse(w, http.StatusBadRequest, "partNumber is no number")
			return
		}
		found.parts[number] = body
		w.Header().Set("ETag", strconv.Quote(strconv.Itoa(number)))
	case http.MethodPost:
		s.completeUpload(w, bucket, object, found, body)
		delete(s.uploads.byID, id)
	default:
		delete(s.uploads.byID, id)
		w.WriteHeader(http.StatusNoContent)
	}
}

// completeUpload writes the object from the parts that the client names, in their order.
func (s *server) completeUpload(w http.ResponseWriter, bucket, object string, found *upload, body []byte) {
	var named struct {
		Part []struct{ PartNumber int }
	}
	if err := xml.Unmarshal(body, &named); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	var content bytes.Buffer
	for _, part := range named.Part {
		data, isThere := found.parts[part.PartNumber]
		if !isThere {
			refuse(w, http.StatusBadRequest, "a part is missing")
			return
		}
		content.Write(data)
	}
	recorder := &statusRecorder{ResponseWriter: w}
	s.put(recorder, bucket, object, found.header, &content)
	if recorder.isRefused {
		return
	}
	answerXML(w, struct {
		XMLName           xml.Name `xml:"CompleteMultipartUploadResult"`
		Bucket, Key, ETag string
	}{Bucket: bucket, Key: object, ETag: w.Header().Get("ETag")})
}

// statusRecorder tells whether an answer was refused.
type statusRecorder struct {
	http.ResponseWriter
	isRefused bool
}

func (r *statusRecorder) WriteHeader(status int) {
	r.isRefused = status >= http.StatusBadRequest
	r.ResponseWriter.WriteHeader(status)
}
