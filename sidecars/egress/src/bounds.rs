//! Every bound and deadline of the proxy, with its reason.
//!
//! What comes from the bottle is hostile and what comes from upstream is not trusted either: no read
//! waits for ever and nothing grows without an end. A bound that is hit closes or refuses; it never lets
//! something through unseen.

use std::time::Duration;

/// Connections from the bottle at one time. One more waits in the listener's queue: a flood stalls the
/// bottle that sends it and costs the host nothing else. Browsers and build tools stay below 200.
pub(crate) const CONNECTIONS: usize = 512;

/// Requests under way at one time, over all connections; the next ones wait. Times [`WINDOW`] this is
/// the most memory that readers who never read can pin down.
pub(crate) const REQUESTS: usize = 512;

/// The first byte, and from there the whole TLS hello, arrive within this time. Local clients send both
/// at once; slow enough for a machine that swaps.
pub(crate) const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// Bytes of a TLS hello, however it is split. Post-quantum key shares make 1.8 KiB, old clients with
/// tickets 4 KiB.
pub(crate) const HELLO_BYTES: usize = 32 * 1024;

/// The rest of a TLS handshake after the hello.
pub(crate) const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

/// A request's headers arrive within this time; on a connection kept alive it is the idle time too,
/// which is why it is not shorter.
pub(crate) const HEADERS_WITHIN: Duration = Duration::from_secs(75);

/// Bytes of a request's headers (cookies and tracing make up to 16 KiB in the wild).
pub(crate) const HEADER_BYTES: usize = 96 * 1024;

/// Headers of one request.
pub(crate) const HEADERS: usize = 256;

/// The longest silence inside a request's body while the proxy is waiting for it.
pub(crate) const REQUEST_BODY_IDLE: Duration = Duration::from_secs(120);

/// Bytes of a refused request that are still read, so that its sender comes to read the answer. The
/// first request of a coding agent has about 100 KB.
pub(crate) const DRAIN_BYTES: usize = 4 << 20;

/// For how long they are.
pub(crate) const DRAIN_WITHIN: Duration = Duration::from_secs(5);

/// The longest time a write to the bottle makes no progress: a reader that stopped reading.
pub(crate) const WRITE_STALL: Duration = Duration::from_secs(300);

/// HTTP/2 streams of one connection.
pub(crate) const STREAMS: u32 = 128;

/// HTTP/2 streams that were reset and not yet handed to the proxy (CVE-2023-44487, rapid reset).
pub(crate) const PENDING_RESETS: usize = 20;

/// HTTP/2 streams that the proxy itself reset because the peer broke the protocol, before the
/// connection is given up (CVE-2025-8671, made-you-reset).
pub(crate) const LOCAL_RESETS: usize = 128;

/// HTTP/2 flow-control window of a stream, both ways.
pub(crate) const WINDOW: u32 = 256 * 1024;

/// HTTP/2 flow-control window of a connection, both ways.
pub(crate) const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// How often a silent HTTP/2 connection is asked whether it is still there.
pub(crate) const PING_EVERY: Duration = Duration::from_secs(60);

/// How long it may take to answer.
pub(crate) const PING_WITHIN: Duration = Duration::from_secs(20);

/// A tunnel (WebSocket, or TLS passed through unopened) without a byte in either direction. Real
/// WebSocket clients ping every 20 to 60 s; a quiet pinned client may think for longer.
pub(crate) const TUNNEL_IDLE: Duration = Duration::from_secs(3600);

/// Bytes of a WebSocket message, whole: it is judged before any of it goes on. Realtime audio comes in pieces
/// of some 100 KB.
pub(crate) const MESSAGE_BYTES: usize = 16 << 20;

/// AccessLog both ends of a WebSocket that it ends.
pub(crate) const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// Looking up one name.
pub(crate) const RESOLVE_WITHIN: Duration = Duration::from_secs(10);

/// Connecting to one address.
pub(crate) const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Addresses of one name that are tried.
pub(crate) const ADDRESSES: usize = 4;

/// From a request sent to the first line of its answer. Models that think without streaming take more
/// than ten minutes.
pub(crate) const RESPONSE_WITHIN: Duration = Duration::from_secs(30 * 60);

/// The longest silence inside a response's body; event streams send comments far more often.
pub(crate) const RESPONSE_BODY_IDLE: Duration = Duration::from_secs(15 * 60);

/// How long an upstream connection without a request is kept.
pub(crate) const UPSTREAM_IDLE: Duration = Duration::from_secs(60);

/// Idle HTTP/1.1 connections kept for one target.
pub(crate) const UPSTREAM_IDLE_CONNECTIONS: usize = 32;

/// Bytes of the answer of `egress.upstream_proxy` to a CONNECT.
pub(crate) const PROXY_ANSWER_BYTES: usize = 16 * 1024;

/// Leaf certificates kept; a bottle that asks for more names pays the minting again.
pub(crate) const LEAVES: u64 = 1024;

/// Refusals kept for a parent that does not listen.
pub(crate) const EVENTS: usize = 1024;

/// Log lines that wait for the disk; past it lines are counted and dropped, requests never wait.
pub(crate) const LOG_LINES: usize = 1024;

/// Bytes of a body that a log line shows at level `full`.
pub(crate) const LOG_BODY_BYTES: usize = 16 * 1024;

/// Files of the log's ring.
pub(crate) const LOG_FILES: u64 = 4;

/// Records of usage kept for a keeper that does not come: a night's answers of a busy agent are 5,000. A
/// record is some 300 bytes.
pub(crate) const USAGE_RECORDS: usize = 64 * 1024;

/// Records handed over at once.
pub(crate) const USAGE_BATCH: usize = 64;

/// Bytes of the file of records that wait, behind which it is written anew without those that do not any more.
pub(crate) const USAGE_FILE: u64 = 32 << 20;

/// How long the end waits until a keeper has taken what was counted; a disk that is slow to write it.
pub(crate) const USAGE_TAKEN_WITHIN: Duration = Duration::from_secs(1);
