"""The daemon's side of tunnels: whatever init says is bounded and told apart, and nothing outlives a run."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skilljail_init import frames
from skilljail_init.frames import Frame, FrameDecoder, FrameError, FrameType, encode_tunnel
from skilljaild.egress.tunnel import Tunnel, TunnelClosed
from skilljaild.engines.base import EngineError
from skilljaild.runs import tunnels as module
from skilljaild.runs.frame_writer import FrameWriter
from skilljaild.runs.tunnels import Tunnels

from .fake_engine import FakeStream

OPEN, DATA, CREDIT = FrameType.TUNNEL_OPEN, FrameType.TUNNEL_DATA, FrameType.TUNNEL_CREDIT
END, RESET = FrameType.TUNNEL_END, FrameType.TUNNEL_RESET
WINDOW, PIECE, MOST = frames.TUNNEL_WINDOW, frames.TUNNEL_DATA_MAX, frames.TUNNELS_MAX

Said = list[tuple[FrameType, int, bytes]]


class Bench:
    """Tunnels whose other end is in the hands of a test. `served` holds them in the order in which they were opened."""

    def __init__(self) -> None:
        self.said: Said = []
        self.served: list[Tunnel] = []
        self.active = 0
        self.serve: Callable[[Tunnel], Awaitable[None]] = self.wait
        self.gone = False
        self.fault = ""
        self.release = asyncio.Event()
        self.tunnels = Tunnels(self.write, self._serve)

    async def wait(self, tunnel: Tunnel) -> None:
        """Serves nothing until `release`."""
        del tunnel
        await self.release.wait()

    async def _serve(self, tunnel: Tunnel) -> None:
        self.served.append(tunnel)
        self.active += 1
        try:
            await self.serve(tunnel)
        finally:
            self.active -= 1

    async def write(self, data: bytes) -> None:
        """Takes what is said to init."""
        await asyncio.sleep(0)
        if self.gone:
            raise EngineError("the sandbox's stream is closed")
        for frame in FrameDecoder(frames.TO_INIT_MAX, frames.FROM_DAEMON).feed(data):
            self.said.append((frame.type, *frames.split_tunnel(frame)))

    def take(self, frame_type: FrameType, number: int, content: bytes | int = b"") -> None:
        """Lets init say something."""
        (frame,) = FrameDecoder(frames.FROM_INIT_MAX, frames.FROM_INIT).feed(encode_tunnel(frame_type, number, content))
        self.tunnels.take(frame)

    async def opened(self, number: int = 1) -> Tunnel:
        """Opens a tunnel, and waits until it is served."""
        self.take(OPEN, number)
        await settled()
        return self.served[-1]


async def settled() -> None:
    """Lets every task go as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Tunnels that are closed at the end, with nothing left."""
    one = Bench()
    yield one
    await one.tunnels.close()
    assert one.active == 0
    await settled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_data_and_ends_go_both_ways(bench: Bench) -> None:
    async def echo(tunnel: Tunnel) -> None:
        while data := await tunnel.read():
            await tunnel.write(data.upper())
        await tunnel.end()

    bench.serve = echo
    await bench.opened()
    bench.take(DATA, 1, b"ab")
    await settled()
    bench.take(DATA, 1, b"c")
    bench.take(END, 1)
    await settled()
    assert bench.said == [(DATA, 1, b"AB"), (DATA, 1, b"C"), (END, 1, b"")]
    assert bench.tunnels._open == {}


async def test_what_is_read_gives_credit_and_what_is_not_gives_none(bench: Bench) -> None:
    tunnel = await bench.opened()
    for turn in range(3):
        for _ in range(WINDOW // PIECE):
            bench.take(DATA, 1, bytes(PIECE))
        assert len(bench.said) == turn
        assert await tunnel.read() == bytes(WINDOW)
        assert [(kind, frames.split_credit(content)) for kind, _, content in bench.said[turn:]] == [(CREDIT, WINDOW)]
    for _ in range(WINDOW // PIECE):
        bench.take(DATA, 1, bytes(PIECE))
    with pytest.raises(FrameError, match="more data of tunnel 1 than its window has room for"):
        bench.take(DATA, 1, b"x")


async def test_little_is_not_worth_a_word_until_it_adds_up(bench: Bench) -> None:
    tunnel = await bench.opened()
    for _ in range(3):
        bench.take(DATA, 1, bytes(module.CREDIT_STEP // 2))
        await tunnel.read()
    assert [frames.split_credit(content) for _, _, content in bench.said] == [module.CREDIT_STEP]


async def test_writing_waits_for_credit_and_goes_on_with_it(bench: Bench) -> None:
    tunnel = await bench.opened()
    data = bytes(range(256)) * 1_000
    writing = asyncio.create_task(tunnel.write(data))
    await settled()
    assert not writing.done()
    assert sum(len(content) for _, _, content in bench.said) == WINDOW
    while not writing.done():
        bench.take(CREDIT, 1, 10_000)
        await settled()
    assert b"".join(content for _, _, content in bench.said) == data
    assert max(len(content) for _, _, content in bench.said) <= PIECE


async def test_a_tunnel_that_is_not_read_does_not_keep_others_waiting(bench: Bench) -> None:
    deaf = await bench.opened(1)
    writing = asyncio.create_task(deaf.write(bytes(2 * WINDOW)))
    other = await bench.opened(2)
    await asyncio.wait_for(other.write(b"quick"), 10)
    assert (DATA, 2, b"quick") in bench.said
    writing.cancel()


@pytest.mark.parametrize("ended", [False, True])
async def test_a_reset_of_the_script_is_the_end_of_writing(bench: Bench, ended: bool) -> None:
    tunnel = await bench.opened()
    writing = asyncio.create_task(tunnel.write(bytes(2 * WINDOW)))
    await settled()
    bench.take(DATA, 1, b"all of it")
    if ended:
        bench.take(END, 1)
    bench.take(RESET, 1)
    with pytest.raises(TunnelClosed):
        await writing
    with pytest.raises(TunnelClosed):
        await tunnel.end()
    if ended:
        assert (await tunnel.read(), await tunnel.read()) == (b"all of it", b"")
    else:
        # Half a request must not look like a whole one.
        with pytest.raises(TunnelClosed):
            await tunnel.read()
    await tunnel.reset()
    assert bench.said[-1] == (RESET, 1, b"")
    assert bench.tunnels._open == {}


async def test_a_reset_is_said_once_and_what_init_still_sends_is_dropped(bench: Bench) -> None:
    tunnel = await bench.opened()
    await tunnel.reset()
    await tunnel.reset()
    bench.take(DATA, 1, b"late")
    with pytest.raises(TunnelClosed):
        await tunnel.read()
    with pytest.raises(TunnelClosed):
        await tunnel.write(b"x")
    assert bench.said == [(RESET, 1, b"")]
    bench.take(RESET, 1)
    assert bench.tunnels._open == {}


@pytest.mark.parametrize("how", ["returns", "raises", "is closed"])
async def test_who_serves_and_is_done_leaves_no_open_tunnel(
    bench: Bench, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    async def serve(tunnel: Tunnel) -> None:
        if how == "raises":
            raise ValueError("secret")
        if how == "is closed":
            raise TunnelClosed

    bench.serve = serve
    await bench.opened()
    assert bench.said == [(RESET, 1, b"")]
    bench.take(RESET, 1)
    await bench.opened(2)


async def test_more_than_the_bound_is_a_broken_protocol(bench: Bench) -> None:
    for number in range(1, MOST + 1):
        bench.take(OPEN, number)
    with pytest.raises(FrameError, match=f"more than {MOST} tunnels at one time"):
        bench.take(OPEN, MOST + 1)


async def test_who_is_still_busy_with_a_tunnel_that_is_over_keeps_its_place(bench: Bench) -> None:
    async def lingers(tunnel: Tunnel) -> None:
        await tunnel.end()
        await bench.release.wait()

    bench.serve = lingers
    for number in range(1, 3 * MOST):
        bench.take(OPEN, number)
        await settled()
        if number > MOST:  # nobody serves it yet, and init ends it
            bench.take(RESET, number)
            assert bench.active == MOST
            if len(bench.tunnels._open) == MOST:
                break
        else:
            bench.take(END, number)
    assert bench.active == MOST
    bench.release.set()
    await settled()
    assert bench.tunnels._open == {}


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ([(OPEN, 2, b"")], "tunnel 2 where 1 was due"),
        ([(OPEN, 0, b"")], "tunnel 0 where 1 was due"),
        ([(OPEN, 1, b""), (OPEN, 1, b"")], "tunnel 1 where 2 was due"),
        ([(DATA, 1, b"x")], "TUNNEL_DATA frame of tunnel 1, which is not open"),
        ([(CREDIT, 1, 5)], "TUNNEL_CREDIT frame of tunnel 1, which is not open"),
        ([(OPEN, 1, b""), (END, 2, b"")], "TUNNEL_END frame of tunnel 2, which is not open"),
        ([(OPEN, 1, b""), (END, 1, b""), (DATA, 1, b"x")], "TUNNEL_DATA frame of tunnel 1 after its end"),
        ([(OPEN, 1, b""), (END, 1, b""), (END, 1, b"")], "TUNNEL_END frame of tunnel 1 after its end"),
        ([(OPEN, 1, b""), (RESET, 1, b""), (DATA, 1, b"x")], "TUNNEL_DATA frame of tunnel 1 after its end"),
        ([(OPEN, 1, b""), (RESET, 1, b""), (RESET, 1, b"")], "TUNNEL_RESET frame of tunnel 1 after its end"),
        ([(OPEN, 1, b""), (CREDIT, 1, 1)], "more credit for tunnel 1 than its window has"),
        ([(OPEN, 1, b""), (CREDIT, 1, 0)], "TUNNEL_CREDIT frame of 0"),
        ([(OPEN, 1, b""), (CREDIT, 1, 2**32 - 1)], "TUNNEL_CREDIT frame of 4294967295"),
        ([(OPEN, 1, b""), (CREDIT, 1, b"xx")], "TUNNEL_CREDIT frame of 6 bytes"),
        ([(OPEN, 1, b"x")], "TUNNEL_OPEN frame of 5 bytes"),
        ([(OPEN, 1, b""), (DATA, 1, b"")], "TUNNEL_DATA frame of 4 bytes"),
        ([(OPEN, 1, b""), (DATA, 1, bytes(PIECE + 1))], f"TUNNEL_DATA frame of {PIECE + 5} bytes"),
    ],
)
async def test_an_init_that_breaks_the_rules_is_found_out(
    bench: Bench, said: list[tuple[FrameType, int, bytes | int]], fault: str
) -> None:
    *good, bad = said
    for one in good:
        bench.take(*one)
    with pytest.raises(FrameError) as caught:
        bench.take(*bad)
    assert str(caught.value) == fault


def test_a_frame_without_a_number_is_found_out() -> None:
    with pytest.raises(FrameError, match="TUNNEL_END frame of 3 bytes"):
        frames.split_tunnel(Frame(END, b"abc"))


async def test_what_crosses_the_end_of_a_tunnel_is_dropped_and_no_more_than_can_be(bench: Bench) -> None:
    async def serve(tunnel: Tunnel) -> None:
        await tunnel.end()
        await tunnel.read()

    bench.serve = serve
    await bench.opened()
    bench.take(END, 1)
    await settled()
    assert bench.tunnels._open == {}
    for _ in range(module.LATE_FRAMES - 1):
        bench.take(CREDIT, 1, 5)
    bench.take(RESET, 1)
    with pytest.raises(FrameError, match="which is not open"):
        bench.take(CREDIT, 1, 5)


async def test_closing_ends_everything_and_says_nothing(bench: Bench) -> None:
    first = await bench.opened(1)
    second = await bench.opened(2)
    reading = asyncio.create_task(first.read())
    writing = asyncio.create_task(second.write(bytes(2 * WINDOW)))
    await settled()
    bench.said.clear()
    await bench.tunnels.close()
    for task in (reading, writing):
        with pytest.raises(TunnelClosed):
            await task
    assert (bench.active, bench.said) == (0, [])


async def test_a_sandbox_that_is_gone_closes_every_tunnel(bench: Bench) -> None:
    tunnel = await bench.opened()
    bench.gone = True
    with pytest.raises(TunnelClosed):
        await tunnel.write(b"x")
    await tunnel.reset()


HOSTILE = st.tuples(
    st.sampled_from([OPEN, DATA, CREDIT, END, RESET]),
    st.integers(0, 6),
    st.sampled_from([b"", b"x", bytes(20_000), frames.NUMBER.pack(1), frames.NUMBER.pack(WINDOW)]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(HOSTILE, max_size=40), st.booleans())
def test_whatever_init_says_stays_within_the_bounds(said: Said, reads: bool) -> None:
    async def serve(tunnel: Tunnel) -> None:
        while reads and (data := await tunnel.read()):
            await tunnel.write(data)
        await tunnel.end()

    async def play() -> None:
        bench = Bench()
        bench.serve = serve
        try:
            for one in said:
                bench.take(*one)
                await asyncio.sleep(0)
                assert len(bench.tunnels._open) <= MOST
                for tunnel in bench.tunnels._open.values():
                    assert sum(map(len, tunnel._pieces)) <= WINDOW
        except FrameError as error:
            bench.fault = str(error)
        await settled()
        for number in {number for _, number, _ in bench.said}:
            kinds = [kind for kind, one, _ in bench.said if one == number]
            assert kinds.count(RESET) <= 1
            assert kinds.count(END) <= 1
            if END in kinds:
                assert DATA not in kinds[kinds.index(END) :]
        await bench.tunnels.close()
        assert bench.active == 0
        assert len(bench.fault) < 200

    asyncio.run(play())


async def test_pieces_are_written_whole_and_in_order_whoever_is_cancelled() -> None:
    class Slow(FakeStream):
        writing = 0

        async def write(self, data: bytes) -> None:
            assert self.writing == 0
            self.writing += 1
            await gate.wait()
            self.writing -= 1
            await super().write(data)

    gate, stream = asyncio.Event(), Slow()
    writer = FrameWriter(stream)
    first, second = (asyncio.create_task(writer.write(frames.encode(FrameType.DATA, one))) for one in (b"1", b"2"))
    await settled()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(first, 10)
    assert stream.written == []
    gate.set()
    await asyncio.wait_for(second, 10)
    assert stream.written == [frames.encode(FrameType.DATA, one) for one in (b"1", b"2")]


async def test_a_write_that_nobody_waits_for_any_more_may_fail_quietly() -> None:
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    stream = FakeStream()
    stream.end()
    writer = FrameWriter(stream)
    task = asyncio.create_task(writer.write(b"x"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    await settled()
    with pytest.raises(EngineError):
        await writer.write(b"x")
    assert faults == []
