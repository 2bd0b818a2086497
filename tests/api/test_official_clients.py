"""The official clients themselves enqueue a job and start a chain; skipped where one or its runtime is not installed.

Python finds `ojs` as any other package; the others are checkouts, built if they must be, in the folder
`OJS_TEST_CLIENTS` under their repositories' names.
"""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from django_ojs_unique.models import Job, Workflow
from tests.support.processes import PATIENCE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
CHECKOUTS = Path(os.environ.get("OJS_TEST_CLIENTS", "nowhere")).absolute()

PYTHON = """
import asyncio, json, os, ojs
async def main():
    headers = {"Authorization": "Bearer " + os.environ["OJS_TOKEN"]}
    async with ojs.Client(os.environ["OJS_URL"], headers=headers) as client:
        job = await client.enqueue("email.send", ["ada"])
        steps = [ojs.JobRequest(type="first", args=[]), ojs.JobRequest(type="second", args=[])]
        started = await client.workflow(ojs.chain("c", steps))
        print(json.dumps([job.id, started.id, started.state]))
asyncio.run(main())
"""
JAVASCRIPT = """
import { OJSClient, chain } from "@openjobspec/sdk";
const client = new OJSClient({ url: process.env.OJS_URL, auth: `Bearer ${process.env.OJS_TOKEN}` });
const job = await client.enqueue("email.send", ["ada"]);
const started = await client.workflow(chain({ type: "first", args: [] }, { type: "second", args: [] }));
console.log(JSON.stringify([job.id, started.id, started.state]));
"""
RUBY = """
require "json"
require "ojs"
client = OJS::Client.new(ENV["OJS_URL"], headers: { "Authorization" => "Bearer #{ENV["OJS_TOKEN"]}" })
job = client.enqueue("email.send", ["ada"])
started = client.workflow(OJS.chain(OJS::Step.new(type: "first"), OJS::Step.new(type: "second")))
puts JSON.generate([job.id, started["id"], started["state"]])
"""
GO = """
package main

import (
	"context"
	"fmt"
	"os"

	ojs "github.com/openjobspec/ojs-go-sdk"
)

func main() {
	client, _ := ojs.NewClient(os.Getenv("OJS_URL"), ojs.WithAuthToken(os.Getenv("OJS_TOKEN")))
	job, err := client.Enqueue(context.Background(), "email.send", ojs.Args{"to": "ada"})
	if err != nil {
		panic(err)
	}
	chain := ojs.Chain(ojs.Step{Type: "first", Args: ojs.Args{}}, ojs.Step{Type: "second", Args: ojs.Args{}})
	started, err := client.CreateWorkflow(context.Background(), chain)
	if err != nil {
		panic(err)
	}
	fmt.Printf("[%q, %q, %q]", job.ID, started.ID, started.State)
}
"""
JAVA = """
import java.util.Map;
import org.openjobspec.ojs.*;

class Program {
    public static void main(String[] args) {
        var client = OJSClient.builder().url(System.getenv("OJS_URL")).authToken(System.getenv("OJS_TOKEN")).build();
        var job = client.enqueue("email.send", Map.of("to", "ada"));
        var chain = Workflow.chain("c", Workflow.step("first", Map.of()), Workflow.step("second", Map.of()));
        var started = client.createWorkflow(chain);
        System.out.printf("[\\"%s\\", \\"%s\\", \\"%s\\"]", job.id(), started.id(), started.state());
    }
}
"""
CALLS = {
    "ojs-python-sdk": [sys.executable, "-c", PYTHON],
    "ojs-js-sdk": ["node", "--input-type=module", "-e", JAVASCRIPT],
    "ojs-ruby-sdk": ["ruby", "-Ilib", "-e", RUBY],
    "ojs-go-sdk": ["go", "run"],
    "ojs-java-sdk": ["java", "-cp", "target/classes"],
}
FILES = {"ojs-go-sdk": ("program.go", GO), "ojs-java-sdk": ("Program.java", JAVA)}
"""The programs that no argument can be."""


@pytest.mark.parametrize("name", CALLS)
def test_the_client_enqueues_a_job_and_starts_a_chain(server, tmp_path, name):
    folder, call = CHECKOUTS / name, CALLS[name]
    if name == "ojs-python-sdk":
        folder = Path.cwd()
        if find_spec("ojs") is None:
            pytest.skip("there is no package `ojs`: pip install openjobspec")
    elif shutil.which(call[0]) is None or not folder.is_dir():
        pytest.skip(f"there is no {call[0]}, or OJS_TEST_CLIENTS has no {name}")
    if name in FILES:
        file, program = FILES[name]
        (tmp_path / file).write_text(program)
        call = [*call, str(tmp_path / file)]
    ran = subprocess.run(call, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stderr
    job, workflow, state = json.loads(ran.stdout)
    assert Job.objects.get(pk=job).type == "email.send"
    assert (state, Workflow.objects.get(pk=workflow).type) == ("running", "chain")
