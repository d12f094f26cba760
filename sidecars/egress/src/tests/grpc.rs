//! gRPC with its Python library on both sides: all kinds of calls, metadata, trailers, flow control, deadlines and
//! cancellations. Deadlines and cancellations must reach the server.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use bottle_test_support::authority::Authority;
use bottle_test_support::{python, skip};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::fixture::{ProxyFixture, SITE};

/// A host with a route that does not scan requests, so that a call can send data in both directions at the same time.
const OPEN: &str = "open.example.com";

/// The program of a server that prints its port, and prints how each call to `/t/wait` ends.
const SERVER: &str = r#"
import os, sys, threading
from concurrent import futures
import grpc

def unary(request, context):
    seen = dict(context.invocation_metadata())
    context.send_initial_metadata((('x-initial', seen['x-sent']),))
    context.set_trailing_metadata((('x-trailing', 'last'), ('x-bytes-bin', seen['x-bytes-bin'])))
    return request[::-1]

def fails(request, context):
    context.set_trailing_metadata((('x-trailing', 'why'),))
    context.abort(grpc.StatusCode.NOT_FOUND, 'nothing called \u00e9')

def down(request, context):
    for number in range(int(request)):
        yield bytes([number % 256]) * 65536

def up(requests, context):
    return str(sum(map(len, requests))).encode()

def both(requests, context):
    for request in requests:
        yield request.upper()

def wait(request, context):
    ended = threading.Event()
    limit = 'with a deadline' if context.time_remaining() < 4 else 'without'
    # In one call, because several threads write.
    os.write(1, f'waits {request.decode()} {limit}\n'.encode())
    context.add_callback(ended.set)
    os.write(1, f'ended {request.decode()} {ended.wait(60)}\n'.encode())
    return b''

def wait_stream(request, context):
    yield b'first'
    wait(request, context)

METHODS = {
    '/t/unary': grpc.unary_unary_rpc_method_handler(unary),
    '/t/fails': grpc.unary_unary_rpc_method_handler(fails),
    '/t/wait': grpc.unary_unary_rpc_method_handler(wait),
    '/t/wait-stream': grpc.unary_stream_rpc_method_handler(wait_stream),
    '/t/down': grpc.unary_stream_rpc_method_handler(down),
    '/t/up': grpc.stream_unary_rpc_method_handler(up),
    '/t/both': grpc.stream_stream_rpc_method_handler(both),
}

class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        return METHODS.get(details.method)

key, certificate = (open(path, 'rb').read() for path in sys.argv[1:3])
server = grpc.server(futures.ThreadPoolExecutor(8), handlers=[Handler()])
port = server.add_secure_port('127.0.0.1:0', grpc.ssl_server_credentials([(key, certificate)]))
server.start()
print(port, flush=True)
sys.stdin.read()
"#;

const CLIENT: &str = r#"
import queue, sys, time
import grpc

def call(channel, kind, name):
    return getattr(channel, kind)('/t/' + name)

scanned, open_ = (grpc.secure_channel(host + ':443', grpc.ssl_channel_credentials()) for host in sys.argv[1:3])
sent = (('x-sent', 'hello'), ('x-bytes-bin', b'\x00\xff'))
for channel in (scanned, open_):
    answer, made = call(channel, 'unary_unary', 'unary').with_call(b'abc', metadata=sent, timeout=60)
    trailing = dict(made.trailing_metadata())
    print('unary', answer, dict(made.initial_metadata())['x-initial'], trailing['x-trailing'], trailing['x-bytes-bin'])
    try:
        call(channel, 'unary_unary', 'fails')(b'', timeout=60)
    except grpc.RpcError as error:
        print('fails', error.code().name, error.details(), dict(error.trailing_metadata())['x-trailing'])
    # More than the windows of streams and connections; the client reads slowly at first.
    received = 0
    for number, piece in enumerate(call(channel, 'unary_stream', 'down')(b'128', timeout=120)):
        if number < 3:
            time.sleep(0.2)
        assert piece == bytes([number % 256]) * 65536
        received += len(piece)
    print('down', received)
    pieces = (b'u' * 65536 for _ in range(128))
    print('up', call(channel, 'stream_unary', 'up')(pieces, timeout=120))
    print('both', list(call(channel, 'stream_stream', 'both')(iter([b'a', b'b']), timeout=60)))

# Each request is sent after the response to the preceding one.
requests = queue.Queue()
answers = call(open_, 'stream_stream', 'both')(iter(requests.get, None), timeout=60)
for word in (b'one', b'two', b'three'):
    requests.put(word)
    print('in turn', next(answers))
requests.put(None)
print('in turn', list(answers))

for name, channel in (('scanned', scanned), ('open', open_)):
    try:
        call(channel, 'unary_unary', 'wait')(name.encode() + b'-deadline', timeout=3)
    except grpc.RpcError as error:
        print('deadline', error.code().name)
    cancelled = call(channel, 'unary_stream', 'wait-stream')(name.encode() + b'-cancel')
    print('cancel', next(cancelled))
    cancelled.cancel()
"#;

/// The expected output of the client for each host.
const CALLS: &str = "unary b'cba' hello last b'\\x00\\xff'\nfails NOT_FOUND nothing called é why\ndown 8388608\n\
                     up b'8388608'\nboth [b'A', b'B']\n";

async fn server(
    python: &Path,
    authority: &Authority,
    directory: &Path,
) -> (Child, Lines<BufReader<ChildStdout>>, u16) {
    let (certificate, key) = authority.leaf_pem(&[SITE, OPEN]).expect("leaf");
    let paths: [PathBuf; 2] = ["key.pem", "leaf.pem"].map(|name| directory.join(name));
    for (path, text) in paths.iter().zip([key, certificate]) {
        std::fs::write(path, text).expect("file");
    }
    let mut server = Command::new(python)
        .args(["-c", SERVER])
        .args(&paths)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("server");
    let mut lines = BufReader::new(server.stdout.take().expect("output")).lines();
    let port = lines.next_line().await.expect("line").expect("a port").parse().expect("a number");
    (server, lines, port)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_calls_of_all_kinds_pass() {
    let found =
        tokio::task::spawn_blocking(|| python::beside_the_tests("python-grpcio", &["grpcio==1.76.0"]));
    let python = match found.await.expect("no panic") {
        Ok(python) => python,
        Err(why) => return skip::aloud("grpc_calls_of_all_kinds_pass", &why),
    };
    let authority = Authority::new("grpc").expect("authority");
    let directory = tempfile::tempdir().expect("directory");
    let (_server, mut lines, port) = server(&python, &authority, directory.path()).await;
    let to = format!("connect_to: '127.0.0.1:{port}'");
    let yaml = format!(
        "routes:\n- host: {SITE}\n  {to}\n- host: {OPEN}\n  {to}\n  dlp: {{outbound_detectors: false}}\n"
    );
    let proxy = ProxyFixture::with_routes(authority.pem(), yaml, |_| {}).await;
    let client = Command::new(&python)
        .env_clear()
        .env("https_proxy", format!("http://{}", proxy.proxy))
        .env("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", proxy.ca())
        .args(["-c", CLIENT, SITE, OPEN])
        .kill_on_drop(true)
        .output()
        .await
        .expect("client");
    let in_turn = "in turn b'ONE'\nin turn b'TWO'\nin turn b'THREE'\nin turn []\n";
    let ends = "deadline DEADLINE_EXCEEDED\ncancel b'first'\n";
    assert_eq!(
        String::from_utf8_lossy(&client.stdout),
        [CALLS, CALLS, in_turn, ends, ends].concat(),
        "{}",
        String::from_utf8_lossy(&client.stderr)
    );
    // At the server, each call ends before the server's own time limit.
    let mut seen = Vec::new();
    while seen.len() < 8 {
        seen.push(lines.next_line().await.expect("line").expect("the server runs"));
    }
    for name in ["scanned", "open"] {
        for line in [
            format!("waits {name}-deadline with a deadline"),
            format!("ended {name}-deadline True"),
            format!("waits {name}-cancel without"),
            format!("ended {name}-cancel True"),
        ] {
            assert!(seen.contains(&line), "{line}: {seen:?}");
        }
    }
}
