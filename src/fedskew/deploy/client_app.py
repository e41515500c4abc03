"""Flower's ClientApp: the work of one silo."""

from fedskew.deploy.flower_grid import client_app, none_too_large
from fedskew.deploy.silo_node import answer

app = client_app(none_too_large(answer))
