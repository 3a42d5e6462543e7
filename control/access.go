package control

import (
	"context"
	"errors"
	"net/http"
	"path"
	"strings"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/route"
)

// Which credential opens which route is decided in this file and nowhere else. A
// person's opens every route but those that are a node's alone. A node's opens
// those of nodeRoutes, below the address of its own node, and nothing else. What a
// person may do behind an open route (an admin, a member of the org) is the
// route's own to say.

// openers says whose credential opens a route.
type openers int

const (
	anyone     openers = iota // and none is asked for
	persons                   // of the org; an outsider's is another org's
	ownNode                   // the node's in the path
	nodeOrUser                // either
)

// nodeAddress is the pattern below which a node is at home.
const nodeAddress = "/v1/compute/fleet/workers/{id}"

// nodeRoutes are the patterns that a node's credential opens.
var nodeRoutes = func() map[string]openers {
	routes := map[string]openers{
		"PUT " + nodeAddress:                                                  nodeOrUser,
		"DELETE " + nodeAddress:                                               nodeOrUser,
		"POST " + nodeAddress + "/claim":                                      ownNode,
		"POST " + nodeAddress + "/activities/{activity}/state":                ownNode,
		"GET " + nodeAddress + "/activities/{activity}/trees/{hash}":          ownNode,
		"GET " + nodeAddress + "/activities/{activity}/trees/{hash}/{sha256}": ownNode,
	}
	for _, r := range recordRoutes {
		routes[r.outer()] = ownNode
	}
	return routes
}()

// opens says whose credential opens what a request for path was matched to.
func opens(pattern, path string) openers {
	if who, ok := nodeRoutes[pattern]; ok {
		return who
	}
	switch {
	case pattern == "PUT /v1/research/uploads/{sha256}":
		return anyone // a grant signed the address, which is the authority
	case pattern == "/" && !strings.HasPrefix(path, "/v1/"):
		return anyone // there is nothing there
	case pattern != "/" && !strings.Contains(pattern, " /v1/"):
		return anyone // the document, the health, the issuer's address
	}
	return persons
}

// A bearer is whom a token speaks for.
type bearer struct {
	route.Caller
	revoked bool // a node that was removed
}

// permit says why b does not open a route that who opens, nil when it does. escaped
// is the path as it was sent.
func permit(b bearer, who openers, escaped string) error {
	if b.Node == nil {
		if who == ownNode {
			return api.Refuse(api.Forbidden, "only the node's own credential opens this route")
		}
		return nil
	}
	// Compared as sent: a path that spells the id in another way is not the node's.
	home := strings.Replace(nodeAddress, "{id}", b.Node.ID, 1)
	own := escaped == home || strings.HasPrefix(escaped, home+"/")
	own = own && (who == ownNode || who == nodeOrUser)
	switch {
	case own && b.revoked:
		return api.Refuse(api.Gone, "node %s was removed from org %s; sudo hanzo link links the machine again", b.Node.ID, b.Node.Org)
	case own:
		return nil
	case b.revoked:
		return unknownToken()
	}
	return api.Refuse(api.Forbidden, "the credential of node %s opens only that node's own routes", b.Node.ID)
}

func unknownToken() error {
	return api.Refuse(api.Unauthorized, "this server made no such token")
}

// identify answers whom a token speaks for. A token with a dot is the issuer's,
// for none made here has one; where the issuer cannot be asked, nobody else is.
func (s *Server) identify(ctx context.Context, token string) (bearer, error) {
	if strings.Contains(token, ".") && s.issuer != nil {
		id, err := s.issuer.identify(ctx, token)
		return bearer{Caller: route.Caller{Identity: id}}, err
	}
	id, ok, err := s.store.Identify(ctx, token)
	if err != nil {
		return bearer{}, err
	}
	if ok {
		return bearer{Caller: route.Caller{Identity: id}}, nil
	}
	n, ok, err := s.store.IdentifyNode(ctx, token)
	if err != nil {
		return bearer{}, err
	}
	if !ok {
		return bearer{}, unknownToken()
	}
	return bearer{
		Caller: route.Caller{
			Identity: api.Identity{Owner: n.Org},
			Node:     &route.Node{Org: n.Org, ID: n.ID, Key: n.Key, LinkedBy: n.LinkedBy},
		},
		revoked: n.Revoked,
	}, nil
}

// authenticated gives every request that a credential opens its caller, and
// answers every other.
func (s *Server) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		escaped := r.URL.EscapedPath()
		if !clean(escaped) {
			// The mux would send the client to the path it means, with its token.
			api.Refuse(api.NotFound, "there is no route %s", r.URL.Path).Write(w)
			return
		}
		_, pattern := s.mux.Handler(r)
		who := opens(pattern, r.URL.Path)
		if who == anyone {
			next.ServeHTTP(w, r)
			return
		}
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
			w.Header().Set("WWW-Authenticate", "Bearer")
			api.Refuse(api.Unauthorized, "no bearer token; hanzo login gets one, and hanzo-cloud serve prints where it keeps one").Write(w)
			return
		}
		b, err := s.identify(r.Context(), token)
		if err == nil {
			err = permit(b, who, escaped)
		}
		if err != nil {
			s.refuseToken(w, r, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(route.With(r.Context(), b.Caller)))
	})
}

// refuseToken answers what identify and permit refuse with. That the store or the
// issuer does not answer says nothing of the token: the client keeps it and comes
// again.
func (s *Server) refuseToken(w http.ResponseWriter, r *http.Request, err error) {
	p, ok := errors.AsType[*api.Problem](err)
	if !ok {
		if r.Context().Err() == nil {
			s.log.ErrorContext(r.Context(), "authentication failed", "err", err)
		}
		p = api.Refuse(api.Unavailable, "the server cannot look the token up")
	}
	if p.Code == api.Unauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
	}
	p.Write(w)
}

// clean reports whether a path means what it says: no empty segments and no dots.
func clean(escaped string) bool {
	c := path.Clean(escaped)
	return strings.HasPrefix(escaped, "/") && (c == escaped || c+"/" == escaped)
}
