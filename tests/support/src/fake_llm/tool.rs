//! Creates calls of the agent's shell tool, in the form that the request declares.
//!
//! Agents name this tool `bash`, `Bash`, `shell` or `exec_command`, for example. Agents expect the command as
//! a text or as an argv, and may require more arguments. A server that supported only one form could test
//! only one agent.

use serde_json::{Map, Value, json};

/// A tool that runs commands, as a request declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ShellTool {
    /// A function, with a JSON schema for its arguments.
    Function {
        /// The name of the function.
        name: String,
        /// The JSON schema of the function's arguments.
        schema: Value,
        /// The group in which the function is declared. A call names the group too.
        namespace: Option<String>,
    },
    /// A tool whose input is free text (`type: custom` in Responses).
    Custom {
        /// The name of the tool.
        name: String,
    },
    /// The built-in tool `local_shell` of Responses.
    LocalShell,
}

/// The names of shell tools in lower case, most likely first.
const SHELL_NAMES: [&str; 8] =
    ["bash", "shell", "shell_command", "exec_command", "terminal", "run_shell_command", "execute", "exec"];
/// The names of the argument that contains the command.
const COMMAND_KEYS: [&str; 5] = ["command", "cmd", "script", "code", "input"];

impl ShellTool {
    /// Returns the shell tool among the declared tools, in any of the three formats.
    pub(super) fn find(tools: &[Value]) -> Option<Self> {
        let mut declared: Vec<(usize, Self)> =
            tools.iter().filter_map(Self::read).filter_map(|tool| Some((tool.rank()?, tool))).collect();
        declared.sort_by_key(|(rank, _)| *rank);
        declared.into_iter().next().map(|(_, tool)| tool)
    }

    /// Returns the declared function whose name ends in `name`. Dashes and underscores are treated as equal.
    pub(super) fn called(tools: &[Value], name: &str) -> Option<Self> {
        let plain = |name: &str| name.replace('-', "_");
        let all = tools.iter().flat_map(|tool| Self::read(tool).into_iter().chain(Self::grouped(tool)));
        all.into_iter().find(|tool| plain(tool.name()).ends_with(&plain(name)))
    }

    /// Returns the functions of a group (`type: namespace` in Responses).
    fn grouped(tool: &Value) -> Vec<Self> {
        let inner = tool["tools"].as_array().into_iter().flatten().filter_map(Self::read);
        let group = tool["name"].as_str();
        inner
            .map(|tool| match tool {
                Self::Function { name, schema, .. } => {
                    Self::Function { name, schema, namespace: group.map(str::to_owned) }
                }
                other => other,
            })
            .collect()
    }

    fn read(tool: &Value) -> Option<Self> {
        if tool["type"] == "local_shell" {
            return Some(Self::LocalShell);
        }
        // In Chat Completions, the function is a nested object. In Messages, its schema is named
        // `input_schema`.
        let inner = if tool["function"].is_object() { &tool["function"] } else { tool };
        let name = inner["name"].as_str()?.to_owned();
        if tool["type"] == "custom" && tool["input_schema"].is_null() {
            return Some(Self::Custom { name });
        }
        let schema =
            if inner["parameters"].is_object() { &inner["parameters"] } else { &inner["input_schema"] };
        Some(Self::Function { name, schema: schema.clone(), namespace: None })
    }

    fn rank(&self) -> Option<usize> {
        match self {
            Self::LocalShell => Some(0),
            Self::Function { name, .. } | Self::Custom { name } => {
                SHELL_NAMES.iter().position(|known| name.eq_ignore_ascii_case(known))
            }
        }
    }

    /// Returns the name with which the tool is called.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Function { name, .. } | Self::Custom { name } => name,
            Self::LocalShell => "local_shell",
        }
    }

    /// Returns the arguments with which the tool runs `command`.
    pub(super) fn arguments(&self, command: &str) -> Value {
        match self {
            Self::Custom { .. } => json!(command),
            Self::LocalShell => {
                json!({ "type": "exec", "command": ["bash", "-c", command], "env": {}, "timeout_ms": 60_000 })
            }
            Self::Function { schema, .. } => function_arguments(schema, command),
        }
    }
}

fn function_arguments(schema: &Value, command: &str) -> Value {
    let empty = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&empty);
    let key = COMMAND_KEYS.iter().find(|key| properties.contains_key(**key)).unwrap_or(&"command");
    let mut arguments = Map::new();
    let value = if accepts(&properties.get(*key).cloned().unwrap_or_default(), "array") {
        json!(["bash", "-c", command])
    } else {
        json!(command)
    };
    arguments.insert((*key).to_owned(), value);
    for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !arguments.contains_key(required) {
            arguments.insert(required.to_owned(), filler(properties.get(required)));
        }
    }
    Value::Object(arguments)
}

/// Returns a harmless value for an argument that the client requires.
fn filler(schema: Option<&Value>) -> Value {
    let schema = schema.cloned().unwrap_or_default();
    if let Some(first) = schema["enum"].as_array().and_then(|values| values.first()) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("boolean") => json!(false),
        Some("integer" | "number") => json!(60),
        Some("array") => json!([]),
        Some("object") => json!({}),
        _ => json!("scripted step"),
    }
}

fn accepts(schema: &Value, kind: &str) -> bool {
    schema["type"] == kind || schema["type"].as_array().is_some_and(|kinds| kinds.iter().any(|k| k == kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn puts_the_command_into_the_declared_arguments() {
        let cases = [
            (
                "chat",
                json!({"type": "function", "function": {"name": "bash", "parameters": {
                    "type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}}),
                "bash",
                json!({"command": "ls"}),
            ),
            (
                "messages with more required",
                json!({"name": "Bash", "input_schema": {"type": "object", "properties": {
                    "command": {"type": "string"}, "description": {"type": "string"}, "n": {"type": "integer"}},
                    "required": ["command", "description", "n"]}}),
                "Bash",
                json!({"command": "ls", "description": "scripted step", "n": 60}),
            ),
            (
                "responses with argv",
                json!({"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {
                    "command": {"type": "array", "items": {"type": "string"}}}, "required": ["command"]}}),
                "shell",
                json!({"command": ["bash", "-c", "ls"]}),
            ),
            (
                "responses with cmd",
                json!({"type": "function", "name": "exec_command", "parameters": {"type": "object",
                    "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}}),
                "exec_command",
                json!({"cmd": "ls"}),
            ),
            ("custom", json!({"type": "custom", "name": "shell"}), "shell", json!("ls")),
        ];
        for (case, declared, name, arguments) in cases {
            let other = json!({"name": "read", "input_schema": {"type": "object", "properties": {}}});
            let tool = ShellTool::find(&[other, declared]).expect(case);
            assert_eq!((tool.name(), tool.arguments("ls")), (name, arguments), "{case}");
        }
        assert_eq!(ShellTool::find(&[json!({"name": "read"})]), None);
    }
}
