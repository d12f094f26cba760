//! The usage of each model response must be counted exactly once, whichever process is killed.
//!
//! The test acts as the agent and sends requests through the bottle's proxy. The model's responses contain increasing
//! numbers, so that the test detects lost and duplicate records.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bottle_host::home_hash;
use bottle_test_support::home::TestHome;
use serde_json::Value;

use super::left::process_with;
use super::{cleanup_leaves_nothing, start, status, wait_until};

/// A model whose responses contain increasing numbers.
pub(crate) struct Model {
    address: SocketAddr,
    state: Arc<State>,
}

/// The state that the model's connections share.
#[derive(Default)]
struct State {
    answered: AtomicU64,
    /// Whether responses at the path `/later` begin.
    released: AtomicBool,
}

impl Model {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || answer(client, &shared));
            }
        });
        Self { address, state }
    }

    /// A bottle with a route to this model.
    pub(crate) fn bottle(&self) -> String {
        format!(
            "---\nbackend: fake\nagent_provider: {{template: command, command: [sleep, '600']}}\negress:\n  routes:\n    \
             - host: llm.example\n      ports: [80]\n      connect_to: \"{}\"\n---\n",
            self.address
        )
    }

    pub(crate) fn answered(&self) -> u64 {
        self.state.answered.load(Ordering::SeqCst)
    }

    /// Lets the responses at the path `/later` begin.
    pub(crate) fn release(&self) {
        self.state.released.store(true, Ordering::SeqCst);
    }
}

/// Connects to the proxy of a bottle.
pub(crate) fn connect(home: &TestHome, bottle: &str) -> std::io::Result<UnixStream> {
    let runtime = home.runtime().join("bottle").join(home_hash(&home.bottle_home()));
    UnixStream::connect(runtime.join(format!(".fake/{bottle}/proxy/9099")))
}

/// The tokens of a response at the path `/equal`: prompt and output.
pub(crate) const EQUAL: [u64; 2] = [20, 7];

/// Answers one request, whose body ends with `{}}`, with a stream of events. For the path `/stuck`, the stream begins
/// and never ends. For the paths `/equal` and `/later`, all responses have the same number of tokens; at `/later`, they
/// begin after [`Model::release`].
fn answer(mut client: TcpStream, state: &State) {
    let mut request = Vec::new();
    let mut piece = [0; 1024];
    while !request.ends_with(b"{}}") {
        match client.read(&mut piece) {
            Ok(read) if read > 0 => request.extend_from_slice(&piece[..read]),
            _ => return,
        }
    }
    let number = state.answered.fetch_add(1, Ordering::SeqCst) + 1;
    let [stuck, equal, later] =
        ["stuck", "equal", "later"].map(|path| request.starts_with(format!("POST /{path}").as_bytes()));
    let number = if equal || later { EQUAL[0] } else { number };
    while later && !state.released.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let start = format!(
        "data: {{\"type\":\"message_start\",\"message\":{{\"model\":\"m\",\"usage\":{{\"input_tokens\":{number},\"output_tokens\":1}}}}}}\n\n"
    );
    let end = "data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":7}}\n\ndata: {\"type\":\"message_stop\"}\n\n";
    let body = if stuck { start } else { start + end };
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let _ = client.write_all(format!("{head}{body}").as_bytes());
    if stuck {
        // Reads until the proxy disconnects.
        let _ = client.read(&mut piece);
    }
}

struct Scene {
    home: TestHome,
    model: Model,
}

impl Scene {
    fn new() -> Self {
        let model = Model::start();
        let mut home = super::home();
        home.without_cleanup();
        home.bottle("counted", &model.bottle()).expect("bottle");
        Self { home, model }
    }

    fn run(&self, arguments: &[&str]) {
        let ended = self.home.program(arguments.iter().copied()).expect("program").run().expect("run");
        let _ = ended.expect_code(0);
    }

    fn start_detached(&self) {
        self.run(&["start", "sleeper", "--bottle", "counted", "--label", "one", "--yes", "--detach"]);
    }

    fn start_attached(&self) -> Child {
        let client = start(&self.home, "counted", "one");
        wait_until("the bottle runs", || status(&self.home, "one").as_deref() == Some("running"));
        client
    }

    /// Opens a connection through the proxy and sends a request for a path.
    fn request(&self, path: &str) -> UnixStream {
        let mut proxy = connect(&self.home, "one").expect("the proxy");
        proxy.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
        let request = format!(
            "POST http://llm.example{path} HTTP/1.1\r\nhost: llm.example\r\ncontent-length: 8\r\nconnection: close\r\n\r\n{{\"x\":{{}}}}"
        );
        proxy.write_all(request.as_bytes()).expect("asked");
        proxy
    }

    /// Sends a request to the model and reads its complete response.
    fn ask(&self) {
        let mut text = String::new();
        self.request("/v1/messages").read_to_string(&mut text).expect("an answer");
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("message_stop"), "{text}");
    }

    fn kill(&self, role: &str) {
        process_with(&self.home, role).unwrap_or_else(|| panic!("no {role}")).kill();
        wait_until("it is gone", || process_with(&self.home, role).is_none());
    }

    fn records(&self) -> Vec<Value> {
        let path = self.home.bottle_home().join("usage/one.jsonl");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
    }

    /// Asserts that every response has exactly one usage record.
    fn assert_counted(&self, when: &str) {
        let mut numbers: Vec<u64> =
            self.records().iter().map(|record| record["input"].as_u64().expect("a number")).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=self.model.answered()).collect::<Vec<_>>(), "{when}");
    }
}

#[test]
fn a_keeper_killed_at_random_moments_neither_loses_nor_doubles_usage() {
    let scene = Scene::new();
    scene.start_detached();
    // After this request, the proxy knows that no budget limits the requests. Without this knowledge, requests wait for
    // a keeper.
    scene.ask();
    for round in 0..12_u64 {
        // Requests are sent while the keeper is killed and while the bottle has no keeper.
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| (0..8).for_each(|_| scene.ask()));
            }
            std::thread::sleep(Duration::from_micros(round * 3_700));
            super::kill_keeper(&scene.home, "one");
            scene.ask();
        });
        // The keeper that the `exec` command starts adopts the bottle.
        scene.run(&["exec", "one", "--", "true"]);
    }
    scene.ask();
    scene.run(&["stop", "one", "--time", "0"]);
    scene.assert_counted("after twelve keepers");
    assert!(scene.records().iter().all(|record| record["interrupted"] == false && record["output"] == 7));
    assert_eq!(scene.records()[0]["agent"], "sleeper");
    cleanup_leaves_nothing(&scene.home, "");
    scene.assert_counted("after the cleanup");
}

#[test]
fn the_usage_of_an_orphan_is_counted_at_cleanup() {
    for also in [&[][..], &["__egress"], &["__bundle"]] {
        let scene = Scene::new();
        let client = scene.start_attached();
        scene.ask();
        scene.kill("__keeper");
        (0..5).for_each(|_| scene.ask());
        also.iter().for_each(|role| scene.kill(role));
        let _ = super::said(client);
        cleanup_leaves_nothing(&scene.home, &format!("{also:?}"));
        scene.assert_counted(&format!("{also:?}"));
    }
}

#[test]
fn a_response_cut_by_the_bottles_end_is_counted_as_far_as_received() {
    let scene = Scene::new();
    scene.start_detached();
    scene.ask();
    let mut proxy = scene.request("/stuck/v1/messages");
    let mut seen = Vec::new();
    let mut piece = [0; 1024];
    while !String::from_utf8_lossy(&seen).contains("message_start") {
        let read = proxy.read(&mut piece).expect("the beginning");
        assert!(read > 0, "it goes on");
        seen.extend_from_slice(&piece[..read]);
    }
    scene.run(&["stop", "one", "--time", "0"]);
    scene.assert_counted("after the stop");
    let records = scene.records();
    assert_eq!(
        (records[1]["interrupted"].as_bool(), records[1]["output"].as_u64()),
        (Some(true), Some(1)),
        "{records:?}"
    );
}

/// If the usage file cannot be written, the bottle's directory stays, and the next cleanup collects its usage records.
#[test]
fn an_unwritable_disk_is_reported_and_usage_is_saved_later() {
    let scene = Scene::new();
    scene.start_detached();
    let usage = scene.home.bottle_home().join("usage");
    std::fs::write(&usage, "something else has its place").expect("write");
    scene.ask();
    let stopped = scene.home.program(["stop", "one", "--time", "0"]).expect("program").run().expect("stop");
    assert!(stopped.stderr.contains("usage/one.jsonl"), "{}", stopped.stderr);
    std::fs::remove_file(&usage).expect("remove");
    cleanup_leaves_nothing(&scene.home, "");
    scene.assert_counted("after the cleanup");
}
