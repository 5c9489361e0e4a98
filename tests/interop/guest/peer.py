"""Runs in the guest: the kernel's verbs, by JSON lines on a stream.

A line names a method of :class:`Peer` and its arguments: ``{"do": "poll", "cq": "send"}``; the
answer is one line, ``{"error": ...}`` where it raised.  Memory is five regions of a queue pair:
``target``, which the other side works on; ``good``, of 4096 bytes that are always accessible;
``source``, ``sink`` and ``inbox``, which its own requests and receives use.
"""

import fcntl
import glob
import hashlib
import json
import os
import select
import socket
import time

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR


def names(prefix, words):
    return {getattr(e, prefix + word): prefix + word for word in words.split()}


STATUSES = names(
    "IBV_WC_",
    "SUCCESS LOC_LEN_ERR LOC_QP_OP_ERR LOC_PROT_ERR WR_FLUSH_ERR MW_BIND_ERR BAD_RESP_ERR"
    " LOC_ACCESS_ERR REM_INV_REQ_ERR REM_ACCESS_ERR REM_OP_ERR RETRY_EXC_ERR RNR_RETRY_EXC_ERR"
    " REM_ABORT_ERR FATAL_ERR RESP_TIMEOUT_ERR GENERAL_ERR",
)
STATES = names("IBV_QPS_", "RESET INIT RTR RTS SQD SQE ERR")
EVENTS = names(
    "IBV_EVENT_",
    "CQ_ERR QP_FATAL QP_REQ_ERR QP_ACCESS_ERR COMM_EST SQ_DRAINED QP_LAST_WQE_REACHED",
)
ATOMICS = (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD)
LOCAL = e.IBV_ACCESS_LOCAL_WRITE
REMOTE = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC


class Peer:
    """One queue pair of the kernel's, its memory, and what it takes to drive it."""

    def open(self, gid, size, recv_size, access, qp_access, other_pd):
        """Make everything, to INIT; ``gid`` is the index of our own: 1 for IPv4, 2 for IPv6."""
        self.context = Context(name="rxe0")
        self.gid_index = gid
        self.pd, other = PD(self.context), PD(self.context)
        self.cqs = {"send": CQ(self.context, 1024), "recv": CQ(self.context, 1024)}
        self.memory = {
            "target": MR(other if other_pd else self.pd, size, access),
            "good": MR(self.pd, 4096, LOCAL | REMOTE),
            "source": MR(self.pd, size, LOCAL),
            "sink": MR(self.pd, size, LOCAL),
            "inbox": MR(self.pd, recv_size, LOCAL),
        }
        for mr in self.memory.values():
            mr.write(bytes(mr.length), mr.length)
        self.qp = QP(
            self.pd,
            QPInitAttr(
                qp_type=e.IBV_QPT_RC,
                scq=self.cqs["send"],
                rcq=self.cqs["recv"],
                cap=QPCap(256, 256, 4, 4),
                sq_sig_all=1,
            ),
        )
        attr = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1)
        attr.qp_access_flags = qp_access
        self.qp.modify(
            attr,
            e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS,
        )
        return {
            "qpn": self.qp.qp_num,
            "regions": {name: [mr.buf, mr.length, mr.rkey] for name, mr in self.memory.items()},
        }

    def connect(self, gid, qpn, rq_psn, sq_psn, mtu, timeout, retry, rnr_retry, reads):
        """INIT to RTR to RTS; ``reads`` is how many READs and atomics are served at once."""
        attr = QPAttr(qp_state=e.IBV_QPS_RTR)
        route = GlobalRoute(dgid=GID(gid), sgid_index=self.gid_index)
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        attr.path_mtu, attr.dest_qp_num, attr.rq_psn = mtu, qpn, rq_psn
        attr.max_dest_rd_atomic, attr.min_rnr_timer = reads, 12
        self.qp.modify(
            attr,
            e.IBV_QP_STATE
            | e.IBV_QP_AV
            | e.IBV_QP_PATH_MTU
            | e.IBV_QP_DEST_QPN
            | e.IBV_QP_RQ_PSN
            | e.IBV_QP_MAX_DEST_RD_ATOMIC
            | e.IBV_QP_MIN_RNR_TIMER,
        )
        attr = QPAttr(qp_state=e.IBV_QPS_RTS)
        attr.sq_psn, attr.timeout, attr.retry_cnt = sq_psn, timeout, retry
        attr.rnr_retry, attr.max_rd_atomic = rnr_retry, 4
        self.qp.modify(
            attr,
            e.IBV_QP_STATE
            | e.IBV_QP_SQ_PSN
            | e.IBV_QP_TIMEOUT
            | e.IBV_QP_RETRY_CNT
            | e.IBV_QP_RNR_RETRY
            | e.IBV_QP_MAX_QP_RD_ATOMIC,
        )

    def send(self, requests):
        """Post sends; gives what posting raised, by position, where it did."""
        refused = {}
        for position, request in enumerate(requests):
            try:
                self.qp.post_send(self._work_request(**request))
            except Exception as error:
                refused[position] = str(error)
        return refused

    def _work_request(
        self,
        wr_id,
        opcode,
        at,
        length,
        region,
        lkey_off=0,
        addr=0,
        rkey=0,
        imm=0,
        flags=0,
        compare_add=0,
        swap=0,
    ):
        mr = self.memory[region]
        request = SendWR(
            wr_id=wr_id,
            opcode=opcode,
            num_sge=1,
            sg=[SGE(mr.buf + at, length, mr.lkey + lkey_off)],
            send_flags=e.IBV_SEND_SIGNALED | flags,
            imm_data=socket.htonl(imm),
        )
        if opcode in ATOMICS:
            request.set_wr_atomic(rkey, addr, compare_add, swap)
        else:
            request.set_wr_rdma(rkey, addr)
        return request

    def receive(self, receives):
        """Post receives, each of ``length`` bytes ``at`` an offset in the inbox."""
        mr = self.memory["inbox"]
        for receive in receives:
            sge = SGE(mr.buf + receive["at"], receive["length"], mr.lkey + receive["lkey_off"])
            self.qp.post_recv(RecvWR(wr_id=receive["wr_id"], num_sge=1, sg=[sge]))

    def poll(self, cq, want=0, seconds=10):
        """Completions as they come, until there are ``want`` or the time is up."""
        found, end = [], time.monotonic() + seconds
        while True:
            for wc in self.cqs[cq].poll(64)[1]:
                status = STATUSES.get(wc.status, wc.status)
                found.append([wc.wr_id, status, wc.byte_len, socket.ntohl(wc.imm_data)])
            if len(found) >= want or time.monotonic() > end:
                return found
            time.sleep(0.001)

    def state(self):
        return STATES[self.qp.query(e.IBV_QP_STATE)[0].qp_state]

    def events(self):
        """Asynchronous events that have come so far, of queue pairs and completion queues."""
        folder = "/proc/self/fd/"
        files = {
            int(fd): os.readlink(folder + fd)
            for fd in os.listdir(folder)
            if os.path.islink(folder + fd)
        }
        found = []
        for fd in (fd for fd, target in files.items() if "infinibandevent" in target):
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK)
            while select.select([fd], [], [], 0)[0]:
                event = self.context.get_async_event()
                found.append(event.event_type)
                event.ack()
        return [EVENTS[number] for number in found if number in EVENTS]

    def write(self, region, data, at=0):
        data = bytes.fromhex(data)
        self.memory[region].write(data, len(data), at)

    def read(self, region, length, at=0):
        return self.memory[region].read(length, at).hex()

    def digest(self, region):
        mr = self.memory[region]
        return hashlib.sha256(mr.read(mr.length, 0)).hexdigest()

    def deregister(self, region):
        self.memory[region].close()

    def counters(self):
        """The port's hardware counters."""
        folder = "/sys/class/infiniband/rxe0/ports/1/hw_counters/"
        return {os.path.basename(path): int(open(path).read()) for path in glob.glob(folder + "*")}


def serve(stream):
    """Answer requests until the other end closes."""
    peer = Peer()
    for line in iter(stream.readline, b""):
        request = json.loads(line)
        try:
            answer = getattr(peer, request.pop("do"))(**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        stream.write(json.dumps(answer).encode() + b"\n")
        stream.flush()
