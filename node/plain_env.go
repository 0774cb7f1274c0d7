// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"phalanx"
	"phalanx/client/wire"
)

// rendezvousPath is where rank 0's daemon says where the trainers of a generation meet.
const rendezvousPath = "/v1/rendezvous"

// plainEnv is torchrun's environment for this member's trainer in a world. The daemon is the agent that serves the store, on
// a port of its own host; at is an address that rank 0 may bind for something else.
func (d *Daemon) plainEnv(world *phalanx.World, at string, store int, token string) []string {
	seat := world.SeatOf(d.me())
	var hosts []string // in rank order
	localRank, localSize := 0, 0
	for _, o := range world.Seats {
		if !slices.Contains(hosts, o.Member.Host()) {
			hosts = append(hosts, o.Member.Host())
		}
		if o.Member.Host() == d.cfg.Host {
			if o.Rank < seat.Rank {
				localRank++
			}
			localSize++
		}
	}
	g, size := world.Generation, strconv.Itoa(world.Size())
	env := []string{
		"PHALANX_SOCKET=" + d.paths.Socket(d.cfg.Index), "PHALANX_JOB=" + d.cfg.Job, "PHALANX_MEMBER=" + string(d.me()), "PHALANX_GENERATION=" + g.String(), "PHALANX_START=" + token,
		"RANK=" + strconv.Itoa(int(seat.Rank)), "WORLD_SIZE=" + size, "LOCAL_RANK=" + strconv.Itoa(localRank), "LOCAL_WORLD_SIZE=" + strconv.Itoa(localSize),
		"GROUP_RANK=" + strconv.Itoa(slices.Index(hosts, d.cfg.Host)), "GROUP_WORLD_SIZE=" + strconv.Itoa(len(hosts)),
		"ROLE_NAME=" + cmp.Or(d.cfg.Role, "default"), "ROLE_RANK=" + strconv.Itoa(int(seat.Rank)), "ROLE_WORLD_SIZE=" + size,
		"MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + strconv.Itoa(store), "TORCHELASTIC_USE_AGENT_STORE=True", "PHALANX_RENDEZVOUS=" + at,
		"TORCHELASTIC_RUN_ID=" + d.cfg.Job, "TORCHELASTIC_RESTART_COUNT=" + strconv.FormatUint(g.Number-1, 10),
		"TORCHELASTIC_MAX_RESTARTS=" + strconv.Itoa(d.cfg.MaxStarts), "TORCHELASTIC_ERROR_FILE=" + d.paths.TrainerError(d.life.who),
	}
	return append(env, StartEnv(true, d.cfg.LocalSize)...)
}

// offer names a free port of this host for a generation whose rank 0 is this member, the same one however often it is asked.
// The port is free again when it is returned: the trainer binds it. It lies where the kernel does not pick ports by itself.
func (p *plainRun) offer(g phalanx.Generation) (string, error) {
	d := p.d
	if p.offered.Generation == g {
		return p.offered.Addr, nil
	}
	if s := d.state.World.SeatOf(d.me()); d.state.World.Generation != g || s == nil || s.Rank != 0 || s.Incarnation != d.life.who.Incarnation {
		return "", fmt.Errorf("rendezvous of generation %s: %s is not its rank 0: %w", g, d.me(), phalanx.ErrStaleGeneration)
	}
	ip := d.cfg.Advertise
	if ip == "" {
		ip = d.cfg.Bind
	}
	port := 0
	for range 64 {
		n := 20000 + rand.IntN(12000)
		if free(d.cfg.Bind, n) {
			port = n
			break
		}
	}
	if port == 0 {
		return "", fmt.Errorf("rendezvous of generation %s: no free port from 20000 to 31999 on %s", g, d.cfg.Bind)
	}
	o := plainOffer{g, net.JoinHostPort(ip, strconv.Itoa(port))}
	if err := writeJSON(offerPath(d.paths, d.cfg.Index), o); err != nil { // before it is told: a successor says the same
		return "", err
	}
	p.offered = o
	return o.Addr, nil
}

func free(ip string, port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort(ip, strconv.Itoa(port)))
	if err != nil {
		return false
	}
	_ = l.Close()
	return true
}

type rendezvousAnswer struct {
	Addr string `json:"addr"` // IP:PORT
}

// serve answers the daemons of the other members.
func (p *plainRun) serve(w http.ResponseWriter, r *http.Request) {
	g, err := phalanx.ParseGeneration(r.URL.Query().Get("generation"))
	if err != nil {
		respond(w, http.StatusBadRequest, wire.Error{Message: err.Error(), Code: wire.CodeBadRequest})
		return
	}
	addr, err := p.offerOnLoop(r.Context(), g)
	if err != nil {
		respond(w, http.StatusConflict, wire.Error{Message: err.Error(), Code: wire.CodeBusy})
		return
	}
	respond(w, http.StatusOK, rendezvousAnswer{addr})
}

func (p *plainRun) offerOnLoop(ctx context.Context, g phalanx.Generation) (string, error) {
	type answer struct {
		addr string
		err  error
	}
	answered := make(chan answer, 1) // 1: the loop answers once
	if err := p.d.onLoop(ctx, func() {
		addr, err := p.offer(g)
		answered <- answer{addr, err}
	}); err != nil {
		return "", err
	}
	a := <-answered
	return a.addr, a.err
}

// ask finds out where the trainers of a world meet. It tries until ctx ends with the generation: rank 0's daemon may not have
// read of it yet, or be on its way back.
func (p *plainRun) ask(ctx context.Context, world phalanx.World) (string, error) {
	d, first := p.d, world.Seats[0]
	for told := false; ; {
		var addr string
		var err error
		if first.Member == d.me() {
			addr, err = p.offerOnLoop(ctx, world.Generation)
		} else {
			addr, err = p.askRank0(ctx, first.Member, world.Generation)
		}
		if err == nil {
			return addr, nil
		}
		if !told && ctx.Err() == nil {
			told = true
			d.log.Info("waits for the rendezvous", "generation", world.Generation.String(), "of", string(first.Member), "error", err)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

func (p *plainRun) askRank0(ctx context.Context, id phalanx.MemberID, g phalanx.Generation) (string, error) {
	peer, ok := p.d.roster.peer(id)
	if !ok {
		return "", fmt.Errorf("no address of %s is known", id)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+peer.Addr+rendezvousPath+"?generation="+g.String(), nil)
	if err != nil {
		return "", fmt.Errorf("ask %s for the rendezvous: %w", id, err)
	}
	res, err := p.d.peers.http.Do(req)
	if err != nil {
		return "", fmt.Errorf("ask %s for the rendezvous: %w", id, err)
	}
	defer res.Body.Close()
	body := io.LimitReader(res.Body, maxRequest)
	if res.StatusCode != http.StatusOK {
		var e wire.Error
		_ = json.NewDecoder(body).Decode(&e) // the status says enough
		return "", fmt.Errorf("ask %s for the rendezvous: %s %s", id, res.Status, e.Message)
	}
	var a rendezvousAnswer
	if err := json.NewDecoder(body).Decode(&a); err != nil {
		return "", fmt.Errorf("ask %s for the rendezvous: %w", id, err)
	}
	if _, _, err := net.SplitHostPort(a.Addr); err != nil {
		return "", errors.Join(fmt.Errorf("rendezvous of %s: %q is no address", id, a.Addr), err)
	}
	return a.Addr, nil
}
