//! Launches bottles with secrets. The recipient of each secret can use the secret, and the secret is never readable
//! elsewhere.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bottle_host::home_hash;
use bottle_test_support::engine::{self, docker};
use bottle_test_support::fake_llm::{FakeLlm, Options};
use bottle_test_support::home::TestHome;
use bottle_test_support::skip;

use crate::everywhere::{Found, GIVEN, Place, Search, Searching};

/// Time limit for the agent to use its secrets.
const PATIENCE: Duration = Duration::from_secs(60);

/// The agent's script. It sends a model request with a placeholder, and prints the length of the agent's own secret
/// variable.
const AGENT: &str = "curl -s -o /dev/null -d '{}' https://api.anthropic.com/v1/messages; \
    echo has ${#TOKEN} bytes; sleep 600";

/// The secrets of a launch. They differ in their source and in their recipient.
struct Secrets {
    /// The secret of a route, from the user's environment. Only the proxy may have it.
    route: String,
    /// The secret of a route, from a command's output. Only the proxy may have it.
    program: String,
    /// The value of a variable of the agent.
    variable: String,
}

impl Secrets {
    fn new() -> Self {
        let [route, program, variable] =
            ["route", "program", "variable"].map(|way| format!("{way}-{:032x}", rand::random::<u128>()));
        Self { route, program, variable }
    }

    fn all(&self) -> Vec<String> {
        [&self.route, &self.program, &self.variable].map(Clone::clone).into()
    }
}

fn home(settings: &str, secrets: &Secrets, llm: &FakeLlm) -> TestHome {
    let mut home = TestHome::new().expect("a home");
    let ca = home.outside("llm-ca.pem");
    llm.write_ca(&ca).expect("written");
    let kept = home.write("given/secret", &secrets.program).expect("written");
    home.write("home/.bottle/settings.yml", settings).expect("settings");
    home.write("tmp/note", "the directory for temporary files").expect("made");
    home.agent("user", "---\nbottle: user\n---\n").expect("agent");
    let bottle = format!(
        "---\nbackend: docker\nenv: {{TOKEN: $GIVEN_TOKEN}}\n\
         agent_provider: {{template: command, command: [/bin/sh, -c, {:?}]}}\n\
         egress:\n  ca_bundle: {:?}\n  routes:\n    \
           - {{host: api.anthropic.com, connect_to: \"{}\", auth: {{scheme: header, header: X-Api-Key, token_ref: GIVEN_KEY}}}}\n    \
           - {{host: other.example, auth: {{scheme: Bearer, token_ref: {:?}}}}}\n---\n",
        AGENT,
        ca.display().to_string(),
        llm.address(),
        format!("cmd:/bin/cat {}", kept.display()),
    );
    home.bottle("user", &bottle).expect("bottle");
    let (name, value) = GIVEN.split_once('=').map(|(name, _)| (name, "1")).expect("a variable");
    home.env(name, value).env("GIVEN_KEY", &secrets.route).env("GIVEN_TOKEN", &secrets.variable);
    home.env("TMPDIR", home.outside("tmp"));
    home
}

/// One searchable text in each kind of place, as a control of the search.
struct Planted {
    needle: String,
    home: String,
    container: String,
    process: Child,
    file: std::path::PathBuf,
}

impl Planted {
    fn new(home: &str, state: &Path) -> Self {
        let needle = format!("planted-{:032x}", rand::random::<u128>());
        let [label, planted] = [format!("bottle.home={home}"), format!("planted={needle}")];
        let made = |arguments: &[&str]| docker(arguments).unwrap_or_else(|| panic!("docker {arguments:?}"));
        let (name, write) = (format!("planted-{home}"), format!("echo {needle} | tee /file; sleep 600"));
        let labels = ["--label", label.as_str(), "--label", planted.as_str()];
        made(&[&["network", "create"], &labels[..], &["--internal", &name]].concat());
        made(&[&["volume", "create"], &labels[..], &[&name]].concat());
        let base = engine::BASE_IMAGE;
        let run = ["run", "--detach", "--network", "none"];
        let container = made(&[&run, &labels[..], &[base, "/bin/sh", "-c", &write]].concat());
        made(&["commit", "--message", &needle, &container, &name]);
        let mut process = Command::new("/bin/sh");
        process.args(["-c", "read line", &needle]).env("PLANTED", &needle).stdin(Stdio::piped());
        let process = process.spawn().expect("a process");
        let file = state.join("planted");
        std::fs::create_dir_all(state).expect("directory");
        std::fs::write(&file, &needle).expect("written");
        Self { needle, home: home.to_owned(), container, process, file }
    }

    fn remove(mut self) {
        self.process.kill().expect("ended");
        self.process.wait().expect("ended");
        std::fs::remove_file(&self.file).expect("removed");
        let name = format!("planted-{}", self.home);
        for arguments in [
            &["rm", "--force", &self.container][..],
            &["rmi", &name],
            &["network", "rm", &name],
            &["volume", "rm", &name],
        ] {
            assert!(docker(arguments).is_some(), "{arguments:?}");
        }
    }
}

/// While the search runs, launches a bottle, lets the agent use its secrets, and ends the bottle.
fn searched(settings: &str, test: &str) -> Option<()> {
    let machine = match engine::here() {
        Ok(()) => engine::machine()?,
        Err(why) => {
            skip::aloud(test, &why);
            return None;
        }
    };
    if !rustix::process::geteuid().is_root() {
        skip::aloud(test, &"only root may look at the engine's files and at other users' processes");
        return None;
    }
    let secrets = Secrets::new();
    let options = Options { key: secrets.route.clone(), address: machine, ..Options::default() };
    let llm = FakeLlm::start(options).expect("a model");
    let home = home(settings, &secrets, &llm);
    let run =
        |arguments: &[&str]| home.program(arguments.iter().copied()).expect("program").run().expect("run");
    let hash = home_hash(&home.bottle_home());
    let state = home.bottle_home().join("state");

    let search = |needles: Vec<String>| Search {
        home: hash.clone(),
        directories: vec![home.bottle_home(), home.outside("tmp"), home.runtime()],
        needles,
        agents_own: vec![secrets.variable.clone()],
    };
    let searching = Searching::begin(search(secrets.all()));
    let started = run(&["start", "user", "--label", "one", "--detach", "--yes", "-q"]);
    if started.code == 4 {
        searching.end();
        skip::aloud(test, &started.stderr);
        return None;
    }
    assert_eq!(started.code, 0, "{}", started.stderr);
    let end = Instant::now() + PATIENCE;
    let has_all = format!("has {} bytes", secrets.variable.len());
    while !(llm.seen().iter().any(|call| call.key_accepted)
        && run(&["logs", "one"]).stdout.contains(&has_all))
    {
        assert!(Instant::now() < end, "{:?} {}", llm.seen(), run(&["logs", "one"]).stdout);
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = run(&["exec", "one", "--", "true"]).expect_code(0);
    searching.wait_for_a_round(Instant::now() + PATIENCE);
    let _ = run(&["commit", "one", "-q"]).expect_code(0);
    let _ = run(&["stop", "one", "--time", "0"]).expect_code(0);
    assert_eq!(searching.end(), Found::new(), "{settings}");

    // As a control, the same search finds a text in every kind of place.
    let planted = Planted::new(&hash, &state);
    let searching = Searching::begin(search(vec![planted.needle.clone()]));
    // The engine reports an event only when it happens, so a restart of the container causes one.
    assert!(docker(&["restart", "--time", "0", &planted.container]).is_some());
    std::thread::sleep(Duration::from_secs(1));
    let found = searching.end();
    let key = |place| (planted.needle.clone(), place);
    let missed: Vec<Place> =
        Place::ALL.into_iter().filter(|place| !found.contains_key(&key(*place))).collect();
    planted.remove();
    assert_eq!(missed, [], "{found:#?}");
    let _ = run(&["snapshots", "rm", "one"]);
    Some(())
}

#[test]
fn no_secret_is_exposed_during_a_launch_by_network() {
    searched("docker: {transport: network}\n", "no_secret_is_exposed_during_a_launch_by_network");
}

#[test]
fn no_secret_is_exposed_during_a_launch_by_socket() {
    searched("{}\n", "no_secret_is_exposed_during_a_launch_by_socket");
}
