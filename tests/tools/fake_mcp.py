"""An MCP server that does what a test wants: `python fake_mcp.py [--pages N] [--deaf METHOD] [--die-at-start] [--more NAME]`.

Its tools: say (gives `text` back), wait (`seconds`), die, fail, where (its folder and the variable FAKE), noise (other
lines and a notification before the reply), ask (asks its client for a ping and for something unknown, and tells what it
got), long (a line without an end), flood and babble (notifications without an end, words on standard error). Those of --more tell its process id.
"""

import argparse
import json
import os
import sys
import time

NAMES = ("say", "wait", "die", "fail", "where", "noise", "ask", "long", "flood", "babble")


def write(*messages):
    text = "".join(f"{json.dumps({'jsonrpc': '2.0', **message})}\n" for message in messages)
    os.write(1, text.encode())


def text_of(tool, arguments):
    if tool == "say":
        return arguments["text"]
    if tool == "wait":
        time.sleep(arguments["seconds"])
        return "waited"
    if tool == "die":
        print("my last words", file=sys.stderr, flush=True)
        os._exit(3)
    if tool == "where":
        return f"{os.getcwd()} {os.environ.get('FAKE')} {os.environ.get('LLAMA_API_KEY')}"
    if tool == "noise":
        os.write(1, b"not JSON\n\n[1]\n\xff\n")
        write({"method": "notifications/progress", "params": {}}, {"id": 1_000_000, "result": {}})
        return "through the noise"
    if tool == "ask":
        write({"id": "a", "method": "ping"}, {"id": "b", "method": "roots/list"})
        replies = [json.loads(sys.stdin.readline()) for _ in range(2)]
        return json.dumps([reply.get("result", reply.get("error", {}).get("code")) for reply in replies])
    while tool in ("flood", "babble"):
        os.write(1 if tool == "flood" else 2, b'{"method": "notifications/message"}\n' * 1000)
    if tool != "long":
        return str(os.getpid())
    os.write(1, b"x" * 65_536)
    time.sleep(60)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pages", type=int, default=1)
    parser.add_argument("--deaf")
    parser.add_argument("--die-at-start", action="store_true")
    parser.add_argument("--more", action="append", default=[])
    options = parser.parse_args()
    known = [*NAMES, *options.more]
    if options.die_at_start:
        sys.exit("no configuration was found")
    while line := sys.stdin.readline():
        message = json.loads(line)
        id, method, params = message.get("id"), message["method"], message.get("params", {})
        if id is None or method == options.deaf:
            continue
        if method == "initialize":
            result = {
                "protocolVersion": "2024-11-05",
                "capabilities": {},
                "serverInfo": {"name": "fake", "version": "1"},
            }
        elif method == "tools/list":
            page = int(params.get("cursor", 0))
            schema = {"type": "object", "properties": {"text": {"type": "string"}}}
            names = known[page :: options.pages]
            result = {"tools": [{"name": name, "description": f"to {name}", "inputSchema": schema} for name in names]}
            if page + 1 < options.pages:
                result["nextCursor"] = str(page + 1)
        elif params["name"] == "fail":
            result = {"isError": True, "content": [{"type": "text", "text": "it did not work"}]}
        elif params["name"] not in known:
            write({"id": id, "error": {"code": -32602, "message": "no such tool"}})
            continue
        else:
            text = text_of(params["name"], params["arguments"])
            result = {"content": [{"type": "text", "text": text}, {"type": "image", "data": ""}]}
        write({"id": id, "result": result})


if __name__ == "__main__":
    main()
