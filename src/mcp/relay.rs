//! Carries out the calls of the agent in a bottle, for the keeper of that bottle.
//!
//! The agent may use fewer tools than other clients, and only the bottles that it started. None of the tools reads or
//! writes files of this machine.

use std::pin::Pin;
use std::sync::Arc;

use bottle_host::Host;
use bottle_instance::children::{self, Parent};
use bottle_instance::{State, Store};
use bottle_lib::redaction::Redaction;
use bottle_manifest::mcp::Access;
use bottle_policy::names::{Name, Slug};
use bottle_protocol::session::tools::{ToolAnswer, ToolRequest};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::arguments::{Field, Kind, optional, required};
use super::result::CallResult;
use super::scope::{Bottles, STARTED, Scope};
use super::server::{Mistake, Server, described};
use super::tool_names::with_tools;
use super::tools::{AGENT_TERMINAL, ALL, Effect, LIST, Tool, launch};

/// The tools with which a parent reads and ends its children.
const READS: &[&str] = &[
    LIST,
    STOP,
    "bottle_discard",
    "bottle_logs",
    "bottle_diff",
    "process_list",
    "process_log",
    "process_wait",
    "service_list",
    "service_logs",
    "file_list",
    "file_stat",
    "file_read",
    "file_find",
    "file_search",
];

/// The tools with which a parent also controls its children.
const CONTROLS: &[&str] = &[
    "process_start",
    "process_write",
    "process_signal",
    "process_kill",
    "service_start",
    "service_stop",
    "file_write",
    "file_replace",
    "file_patch",
    "file_delete",
    "file_reset",
];

/// The fields of a child that `bottle_list` returns. The other fields contain information about this machine.
const LISTED: &[&str] = &["slug", "agent", "status", "activity", "started_at", "active_at", "pending"];

/// The name of the tool that ends a child.
const STOP: &str = "bottle_stop";

/// The fields that `bottle_stop` returns. The other fields contain information about this machine.
const STOPPED: &[&str] = &["slug", "code", "signal", "kept"];

const AGENT: Field = required("agent", Kind::Name, "The agent.");
const PROMPT: Field = optional(
    "prompt",
    Kind::Text,
    "The task of the bottle's agent, which it carries out without a terminal. It does not see your conversation.",
);

/// The tool that starts a bottle with an empty workspace and a random name. The parent's manifest must name the agent
/// of the bottle.
const START: Tool = Tool {
    name: "bottle_start",
    effect: Effect::Adds,
    about: "Starts a bottle in the background and returns its name, `slug`: another sandbox with an agent and an empty \
            workspace. It ends when yours ends.",
    fields: &[AGENT, PROMPT],
    call: |given, _| launch(given),
};

/// Returns the tools of a bottle that may start other bottles.
fn tools(access: Access) -> Vec<&'static Tool> {
    let has = |tool: &&Tool| {
        READS.contains(&tool.name) || (access == Access::Control && CONTROLS.contains(&tool.name))
    };
    let terminal = (access == Access::Control).then_some(&AGENT_TERMINAL);
    std::iter::once(&START).chain(terminal).chain(ALL.iter().filter(has)).collect()
}

/// Carries out a call of the agent in this bottle, in the process of its keeper
/// ([`bottle_keeper::tool_calls::Handler`]). The working directory of `host` is the directory in which the bottle was
/// started.
pub fn tool_call(
    host: Host,
    bottle: Slug,
    request: ToolRequest,
) -> Pin<Box<dyn Future<Output = ToolAnswer>>> {
    Box::pin(async move {
        answer(&host, &bottle, request)
            .await
            .unwrap_or_else(|Mistake(sentence)| ToolAnswer::mistake(with_tools(&sentence)))
    })
}

async fn answer(host: &Host, bottle: &Slug, request: ToolRequest) -> Result<ToolAnswer, Mistake> {
    host.check_home().map_err(|error| Mistake(error.to_string()))?;
    let client = Client::of(host, bottle)?;
    Ok(match request {
        ToolRequest::List => ToolAnswer::Tools { tools: client.list() },
        ToolRequest::Call { tool, arguments } => {
            // This token is never cancelled, because the keeper cancels a call by dropping its future.
            let never = CancellationToken::new();
            match client.server.carry_out(&tool, Some(arguments), &never).await? {
                CallResult::Document(document) => ToolAnswer::Document { document: short(&tool, document) },
                CallResult::Text(text) => ToolAnswer::Text { text },
            }
        }
    })
}

/// The agent of a bottle, as a client.
struct Client {
    agents: Vec<Name>,
    server: Server,
}

impl Client {
    fn of(host: &Host, bottle: &Slug) -> Result<Self, Mistake> {
        let none = || Mistake("this bottle may start no others".to_owned());
        let store = Store::of(host);
        let Some(State::Alive(record)) = store.state(bottle) else { return Err(none()) };
        let parent = Parent::of(&record).ok_or_else(none)?;
        let rules = children::read(&store.directory(bottle)).ok().flatten().ok_or_else(none)?.rules;
        let scope =
            Scope { name: parent.client(), bottles: Bottles::parse([STARTED])?, tools: None, mode: None };
        // The secrets of the started bottles are still redacted.
        let redaction = Arc::new(Redaction::new(&[])?);
        let server = Server::with_tools(host.clone(), scope, tools(rules.access), redaction);
        Ok(Self { agents: rules.agents, server })
    }

    /// Returns the descriptions of the tools. The description of `bottle_start` contains the names of the agents.
    fn list(&self) -> Vec<Value> {
        let description = |tool: &&Tool| {
            let mut described = serde_json::to_value(described(tool)).ok()?;
            if tool.name == START.name {
                described["inputSchema"]["properties"]["agent"]["enum"] = json!(self.agents);
            }
            Some(described)
        };
        self.server.tools().iter().filter_map(description).collect()
    }
}

/// Returns the parts of a result that are about bottles. Removes the parts that are about this machine.
fn short(tool: &str, mut document: Value) -> Value {
    let keep = |item: &mut Value, keys: &[&str]| {
        if let Some(item) = item.as_object_mut() {
            item.retain(|key, _| keys.contains(&key.as_str()));
        }
    };
    match tool {
        LIST => document["items"].as_array_mut().into_iter().flatten().for_each(|item| keep(item, LISTED)),
        STOP => keep(&mut document, STOPPED),
        _ => {}
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_has_only_the_tools_of_its_access() {
        let names = |access| tools(access).iter().map(|tool| tool.name).collect::<Vec<_>>();
        assert_eq!(names(Access::Read).len(), READS.len() + 1);
        assert_eq!(names(Access::Control).len(), READS.len() + CONTROLS.len() + 2);
        for tool in ["terminal", "process_signal", "process_write", "process_kill", "file_write"] {
            assert!(!names(Access::Read).contains(&tool), "{tool}");
            assert!(names(Access::Control).contains(&tool), "{tool}");
        }
        // These tools use files of this machine, or start bottles without comparing them with the parent.
        for tool in [
            "bottle_pull",
            "bottle_fork",
            "bottle_resume",
            "bottle_commit",
            "env_run",
            "env_list",
            "agent_list",
        ] {
            assert!(!names(Access::Control).contains(&tool), "{tool}");
        }
        // A tool that changes a child needs the access `control`. Only the tools that end a child do not need it.
        for tool in tools(Access::Read).iter().filter(|tool| tool.effect != Effect::Reads) {
            assert!(["bottle_start", "bottle_stop", "bottle_discard"].contains(&tool.name), "{}", tool.name);
        }
    }

    #[test]
    fn a_parent_chooses_only_the_agent_and_its_task() {
        let fields: Vec<&str> = START.fields.iter().map(|field| field.name).collect();
        assert_eq!(fields, ["agent", "prompt"]);
        // No tool lets the agent choose the user, or a directory of this machine.
        let fields = tools(Access::Control).into_iter().flat_map(|tool| tool.fields).map(|field| field.name);
        assert!(fields.into_iter().all(|name| !["user", "copy_cwd", "label", "bottles"].contains(&name)));
    }

    #[test]
    fn a_result_has_nothing_about_the_machine() {
        let list = json!({"items": [{"slug": "a", "folder": "/home/x", "cwd": "/home/x", "agent": "b"}]});
        assert_eq!(short(LIST, list), json!({"items": [{"slug": "a", "agent": "b"}]}));
        let stopped = json!({"slug": "a", "kept": "files", "workspace": "/home/x", "left": []});
        assert_eq!(short(STOP, stopped), json!({"slug": "a", "kept": "files"}));
        let read = json!({"text": "workspace"});
        assert_eq!(short("file_read", read.clone()), read);
    }
}
