"""No test of the inputs reaches the network."""

import socket

import pytest


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
  def refuse(self, address):
    raise AssertionError(f"a test tried to connect to {address}")

  monkeypatch.setattr(socket.socket, "connect", refuse)
  monkeypatch.setattr(socket.socket, "connect_ex", refuse)
