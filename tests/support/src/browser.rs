//! Drives a headless Chromium over its debugging pipe.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// The time limit for an answer of the browser, and for a change of a page.
const PATIENCE: Duration = Duration::from_secs(60);

/// The number of messages that are buffered. The browser waits while the buffer is full.
const BUFFERED: usize = 64;

/// The names under which distributions install Chromium.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// The shell that gives the browser its pipe: the browser reads from descriptor 3 and writes to descriptor 4.
const PIPE: &str = "exec 3<&0 4>&1 </dev/null >/dev/null 2>&1; exec \"$@\"";

/// A browser with one page. The browser is killed when the value is dropped.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    next: u64,
    session: Option<String>,
    _profile: tempfile::TempDir,
}

/// A node of the accessibility tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessibleNode {
    /// The role, such as `button`.
    pub role: String,
    /// The name that a screen reader reads.
    pub name: String,
}

impl Browser {
    /// Finds the program. Returns `None` if the browser is not installed.
    #[must_use]
    pub fn installed() -> Option<PathBuf> {
        let path = std::env::var_os("PATH")?;
        let directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
        let all = NAMES.iter().flat_map(|name| directories.iter().map(move |directory| directory.join(name)));
        all.into_iter().find(|path| path.is_file())
    }

    /// Starts the browser with an empty profile.
    ///
    /// # Errors
    /// Returns an error if the browser does not start.
    pub fn start(program: &Path) -> Result<Self> {
        let profile = tempfile::tempdir()?;
        let mut command = Command::new("sh");
        command.args(["-c", PIPE, "sh"]).arg(program).args([
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--no-first-run",
            "--no-proxy-server",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--hide-scrollbars",
        ]);
        command.arg(format!("--user-data-dir={}", profile.path().display())).arg("about:blank");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("chromium")?;
        let to = child.stdin.take().context("the browser's pipe")?;
        let output = child.stdout.take().context("the browser's pipe")?;
        let (send, from) = sync_channel(BUFFERED);
        std::thread::spawn(move || {
            let mut reader = BufReader::new(output);
            let mut message = Vec::new();
            while reader.read_until(0, &mut message).is_ok_and(|length| length > 0) {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else { break };
                if send.send(value).is_err() {
                    break;
                }
                message.clear();
            }
        });
        let mut browser = Self { child, to, from, next: 0, session: None, _profile: profile };
        let page = browser.call("Target.createTarget", json!({"url": "about:blank"}))?;
        let attach = json!({"targetId": page["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attach)?;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        Ok(browser)
    }

    /// Calls a method of the DevTools protocol.
    ///
    /// # Errors
    /// Returns an error if the browser answers with an error, or does not answer in time.
    pub fn call(&mut self, method: &str, parameters: Value) -> Result<Value> {
        self.next += 1;
        let mut request = json!({"id": self.next, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            request["sessionId"] = session.as_str().into();
        }
        self.to.write_all(format!("{request}\0").as_bytes())?;
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let mut answer =
                self.from.recv_timeout(left).with_context(|| format!("no answer to {method}"))?;
            if answer["id"] == self.next {
                ensure!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return Ok(answer["result"].take());
            }
        }
    }

    /// Opens a URL, and waits until the page is loaded.
    ///
    /// # Errors
    /// Returns an error if the page does not load in time.
    pub fn open(&mut self, url: &str) -> Result<()> {
        self.call("Page.navigate", json!({"url": url}))?;
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")
    }

    /// Evaluates JavaScript in the page.
    ///
    /// # Errors
    /// Returns an error if the script throws.
    pub fn evaluate(&mut self, script: &str) -> Result<Value> {
        let parameters = json!({"expression": script, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.call("Runtime.evaluate", parameters)?;
        ensure!(answer["exceptionDetails"].is_null(), "{script}: {}", answer["exceptionDetails"]);
        Ok(answer["result"]["value"].take())
    }

    /// Waits until a script returns true.
    ///
    /// # Errors
    /// Returns an error with the text of the page if the script does not return true in time.
    pub fn wait_for(&mut self, condition: &str) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            // While a page is replaced, it has no script context.
            if self.evaluate(condition).is_ok_and(|value| value == true) {
                return Ok(());
            }
            if Instant::now() > end {
                let text = self.evaluate("location.href + '\\n' + document.body.innerText")?;
                bail!("{condition} is not true of {}", text.as_str().unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the page shows a text.
    ///
    /// # Errors
    /// Returns the same errors as [`Browser::wait_for`].
    pub fn wait_for_text(&mut self, text: &str) -> Result<()> {
        let text = Value::from(text);
        self.wait_for(&format!(
            "document.readyState === 'complete' && document.body.innerText.includes({text})"
        ))
    }

    /// Presses a key, as `Enter`, `Tab`, `Space` or one character.
    ///
    /// # Errors
    /// Returns an error if the browser has ended.
    pub fn press(&mut self, key: &str) -> Result<()> {
        let (name, code, number, text) = match key {
            "Enter" => ("Enter", "Enter", 13, "\r"),
            "Tab" => ("Tab", "Tab", 9, ""),
            "Space" => (" ", "Space", 32, " "),
            letter => (letter, "", 0, letter),
        };
        let mut down = json!({"type": "keyDown", "key": name, "code": code, "windowsVirtualKeyCode": number});
        if !text.is_empty() {
            down["text"] = text.into();
        }
        self.call("Input.dispatchKeyEvent", down)?;
        let up = json!({"type": "keyUp", "key": name, "code": code, "windowsVirtualKeyCode": number});
        self.call("Input.dispatchKeyEvent", up).map(drop)
    }

    /// Presses Tab until the focus is on the element that a selector finds.
    ///
    /// # Errors
    /// Returns an error if the focus does not reach the element.
    pub fn tab_to(&mut self, selector: &str) -> Result<()> {
        for _ in 0..60 {
            self.press("Tab")?;
            let there = format!("document.activeElement.matches({})", Value::from(selector));
            if self.evaluate(&there)? == true {
                return Ok(());
            }
        }
        Err(anyhow!("Tab does not reach {selector}"))
    }

    /// Chooses the colours that the user prefers, and the size of the window.
    ///
    /// # Errors
    /// Returns an error if the browser has ended.
    pub fn look(&mut self, dark: bool, width: u32, height: u32) -> Result<()> {
        let scheme = if dark { "dark" } else { "light" };
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}))?;
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size).map(drop)
    }

    /// Takes a screenshot of the window, as PNG.
    ///
    /// # Errors
    /// Returns an error if the browser takes no screenshot.
    pub fn screenshot(&mut self) -> Result<Vec<u8>> {
        let answer = self.call("Page.captureScreenshot", json!({"format": "png"}))?;
        Ok(STANDARD.decode(answer["data"].as_str().unwrap_or_default())?)
    }

    /// The nodes of the accessibility tree that a screen reader does not ignore.
    ///
    /// # Errors
    /// Returns an error if the browser does not compute the tree.
    pub fn accessibility(&mut self) -> Result<Vec<AccessibleNode>> {
        let tree = self.call("Accessibility.getFullAXTree", json!({}))?;
        let nodes = tree["nodes"].as_array().context("no tree")?;
        let text = |node: &Value, key: &str| node[key]["value"].as_str().unwrap_or_default().to_owned();
        let seen = nodes.iter().filter(|node| node["ignored"] != true);
        Ok(seen.map(|node| AccessibleNode { role: text(node, "role"), name: text(node, "name") }).collect())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.call("Browser.close", json!({}));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
